"""The route ``/api/health``: that the server works, and what it has in memory."""

from __future__ import annotations

import sys
from importlib.metadata import version
from pathlib import Path
from time import monotonic
from typing import Any

from fastapi import APIRouter, Request
from pydantic import BaseModel

from vitrail.web.server_state import ServerState

health_router = APIRouter(prefix="/api")
_START = monotonic()


class StoreUsage(BaseModel):
    """Number and bytes of the values in a store, and their maxima."""

    count: int
    max_count: int
    bytes: int
    max_bytes: int


class HealthResponse(BaseModel):
    """The state of the server; ``memory_bytes`` is the resident memory of the process."""

    version: str
    uptime_s: float
    memory_bytes: int | None
    active_jobs: int
    queued_tasks: int
    max_queued_tasks: int
    stores: dict[str, StoreUsage]


@health_router.get("/health", response_model=HealthResponse, tags=["server"])
async def health(request: Request) -> Any:
    """Return whether the server works, how much is queued, and what it keeps in memory."""
    server: ServerState = request.app.state.server
    return {
        "version": version("vitrail"), "uptime_s": round(monotonic() - _START, 1), "memory_bytes": resident_memory(),
        "active_jobs": server.active_jobs, "queued_tasks": len(server.queue), "max_queued_tasks": server.queue.total,
        "stores": server.usage(),
    }  # fmt: skip


def resident_memory() -> int | None:
    """Resident memory of this process in bytes; None where the system does not say."""
    if not sys.platform.startswith("linux"):
        return None
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    return None
