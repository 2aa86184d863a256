"""Server-sent events of a job: its progress and what it finds, as long as a client reads the stream."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from fastapi import Response
from fastapi.responses import StreamingResponse

from rheoscope.studio import wire
from rheoscope.studio.jobs import EventLog, Job, JobQueue

KEEP_ALIVE_SECONDS = 15.0
"""Seconds without an event after which a stream sends a comment, so that proxies keep it open."""


async def followed_events(job: Job) -> AsyncIterator[bytes]:
    """The events of a job, which its client follows as long as the stream is open."""
    with job.followed():
        async for data in event_stream(job.log):
            yield data


async def held_events(queue: JobQueue, job: Job) -> AsyncIterator[bytes]:
    """The events of a job, which runs as long as a client holds it; this stream is one."""
    holder_id = queue.add_holder(job)
    try:
        async for data in followed_events(job):
            yield data
    finally:
        queue.release(holder_id)


async def no_events() -> AsyncIterator[bytes]:
    """The stream of work that is done already."""
    yield b"event: done\ndata: {}\n\n"


async def event_stream(log: EventLog) -> AsyncIterator[bytes]:
    """The events of a job as server-sent events."""
    event_iterator = log.listen()
    next_event: asyncio.Task[Any] | None = None
    try:
        while True:
            next_event = next_event or asyncio.ensure_future(anext(event_iterator, None))
            done, _ = await asyncio.wait([next_event], timeout=KEEP_ALIVE_SECONDS)
            if not done:
                yield b": still here\n\n"
                continue
            event, next_event = next_event.result(), None
            if event is None:
                return
            yield b"event: " + event[0].encode() + b"\ndata: " + wire.encode_json(event[1]) + b"\n\n"
    finally:
        if next_event is not None:
            next_event.cancel()


def event_response(events: AsyncIterator[bytes]) -> Response:
    return StreamingResponse(events, media_type="text/event-stream", headers={"cache-control": "no-cache"})
