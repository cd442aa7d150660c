"""News of a job as they happen, and an end to jobs whose makers have gone away."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

from fastapi import Request

from vitrail.web.jobs import Job
from vitrail.web.state import Client, ServerState

#: Seconds after which a silent stream says that it is still there.
PATIENCE = 10.0
#: Seconds after which somebody in the queue is told again how many are before.
WAITING = 2.0
#: How often a waiting request is asked whether its client is still there, in seconds.
GLANCE = 0.25


def event(kind: str, data: Any) -> str:
    r"""One event of a stream.

    Example:
        >>> event("end", {"state": "done"})
        'event: end\ndata: {"state": "done"}\n\n'
    """
    return f"event: {kind}\ndata: {json.dumps(data, allow_nan=False)}\n\n"


async def stream(studio: ServerState, job: Job, client: Client) -> AsyncIterator[str]:
    """A job as events: all of it, then each item that changes, then the end."""
    mine = bool(client.names & job.owners)
    job.streams += mine
    watcher = job.watch()
    try:
        known = {item.key for item in job.items}
        over = job.over
        yield event("job", studio.show(job))
        while not over:
            keys = await watcher.news(PATIENCE if job.state != "queued" else WAITING)
            if over := job.over:
                await asyncio.sleep(0)  # the last news are on their way
                keys += watcher.rest()
            if {item.key for item in job.items} != known:  # the predicted class is known now
                known = {item.key for item in job.items}
                yield event("job", studio.show(job))
            elif not keys and not over:
                yield event("job", studio.show(job)) if job.state == "queued" else ": still there\n\n"
            for item in list(job.items):
                if item.key in keys:
                    yield event("item", job.show_item(item))
        yield event("end", {"id": job.id, "state": job.state})
    finally:
        job.unwatch(watcher)
        if mine:
            job.streams -= 1
            if not job.streams and not job.over:
                asyncio.get_running_loop().call_later(studio.limits.grace, _abandon, studio, job)


def _abandon(studio: ServerState, job: Job) -> None:
    if not job.streams and not job.over:
        studio.cancel(job)


async def finished(studio: ServerState, job: Job, request: Request) -> None:
    """Wait for a job; if the client goes away first, it is cancelled."""
    watcher = job.watch()
    try:
        while not job.over:
            await watcher.news(GLANCE)
            if not job.over and await request.is_disconnected():
                studio.cancel(job)
                return
    except asyncio.CancelledError:
        studio.cancel(job)
        raise
    finally:
        job.unwatch(watcher)
