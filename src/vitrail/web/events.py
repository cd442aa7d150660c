"""Server-sent events of a job, and cancelling jobs that nobody follows."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

from fastapi import Request

from vitrail.web.jobs import Job
from vitrail.web.server_state import ServerState

#: Seconds between comments that keep an idle stream open.
HEARTBEAT = 10.0
#: Seconds between updates of the queue position.
QUEUE_UPDATE = 2.0
#: Seconds between checks whether the client of a waiting request is still connected.
DISCONNECT_CHECK = 1.0


def format_event(kind: str, data: Any) -> str:
    r"""Format one event of a stream.

    Example:
        >>> format_event("end", {"state": "done"})
        'event: end\ndata: {"state": "done"}\n\n'
    """
    return f"event: {kind}\ndata: {json.dumps(data, allow_nan=False)}\n\n"


async def event_stream(server: ServerState, job: Job) -> AsyncIterator[str]:
    """Yield the events of a job: the whole job, then each changed item, then the end.

    A server that shuts down ends the stream without the last event, so that the page reconnects.
    """
    with job.followed():
        async for event in _events(server, job):
            yield event


async def _events(server: ServerState, job: Job) -> AsyncIterator[str]:
    watcher = job.watch()
    try:
        sent_keys = {item.key for item in job.items}
        finished = job.finished
        yield format_event("job", server.job_json(job))
        while not finished:
            changed = await watcher.wait(HEARTBEAT if job.state != "queued" else QUEUE_UPDATE)
            if server.closing:
                return
            if finished := job.finished:
                await asyncio.sleep(0)  # let the last changes arrive
                changed += watcher.pending()
            if {item.key for item in job.items} != sent_keys:  # the predicted class is known now
                sent_keys = {item.key for item in job.items}
                yield format_event("job", server.job_json(job))
            elif not changed and not finished:
                yield format_event("job", server.job_json(job)) if job.state == "queued" else ": heartbeat\n\n"
            for item in list(job.items):
                if item.key in changed:
                    yield format_event("item", job.item_json(item))
        yield format_event("end", {"id": job.id, "state": job.state})
    finally:
        job.unwatch(watcher)


async def cancel_abandoned_jobs(server: ServerState) -> None:
    """Cancel jobs that nobody follows, now and then, until the task is cancelled."""
    while True:
        await asyncio.sleep(min(1.0, server.limits.grace / 2))
        server.cancel_abandoned()


async def wait_until_finished(server: ServerState, job: Job, request: Request) -> None:
    """Wait for a job; cancel it if the client disconnects first, or if the server shuts down."""
    watcher = job.watch()
    try:
        with job.followed():
            while not job.finished and not server.closing:
                await watcher.wait(DISCONNECT_CHECK)
                if not job.finished and await request.is_disconnected():
                    server.cancel(job)
                    return
    except asyncio.CancelledError:
        server.cancel(job)
        raise
    finally:
        job.unwatch(watcher)
