"""A job's events as a `text/event-stream`, and the pulse of pages (`event: changed`), which then ask what
changed. Sent by the event loop: no thread, no poll per client.

A pulse comes at most once a second however busy the line is, and every few seconds when it is quiet, because
not everything is announced (a server that rests, a slot that is proven free).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from jobs.events.handover import Follow
from jobs.events.hub import EventHub, done_event

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

KEEP_ALIVE_SECONDS = 15.0
CHECK_SECONDS = 30.0
"""How often a reader must still be allowed to follow: its key may be revoked meanwhile."""
RETRY_MS = 2000
"""What a browser waits before it reconnects."""

HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache, no-transform"),
    (b"x-accel-buffering", b"no"),
]

REST_SECONDS = 1.0
QUIET_SECONDS = 5.0
STREAM_SECONDS = 45.0
"""Then the browser comes again, and shows again that it may: within a minute of what was taken from it."""


async def stream_events(
    hub: EventHub, follow: Follow, receive: Receive, send: Send, *, may_follow: Callable[[], Awaitable[bool]]
) -> None:
    """Replays, follows, says `done` with the job's end (of its current round) and stops; before, once the
    reader may not follow any more."""
    await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
    await _send(send, f"retry: {RETRY_MS}\n\n".encode())
    leaves = asyncio.ensure_future(until_disconnect(receive))
    now = asyncio.get_running_loop().time
    check_at = now() + CHECK_SECONDS
    try:
        async with hub.watch(follow.job_id, follow.after) as watch:
            while True:
                comes = asyncio.ensure_future(watch.events())
                await asyncio.wait(
                    {comes, leaves},
                    timeout=min(KEEP_ALIVE_SECONDS, max(check_at - now(), 0.0)),
                    return_when=asyncio.FIRST_COMPLETED,
                )
                if leaves.done():
                    comes.cancel()
                    return
                if now() >= check_at:
                    if not await may_follow():
                        comes.cancel()
                        break
                    check_at = now() + CHECK_SECONDS
                if not comes.done():
                    comes.cancel()
                    await _send(send, b": still here\n\n")
                    continue
                news = comes.result()
                if news is None:
                    break
                for event in news.events:
                    await _send(send, event.as_sse(with_output=follow.with_output, in_full=follow.in_full))
                if news.is_over:
                    await _send(send, done_event(news.job_id, news.status))
                    break
        await send({"type": "http.response.body", "body": b"", "more_body": False})
    finally:
        leaves.cancel()


async def _send(send: Send, chunk: bytes) -> None:
    await send({"type": "http.response.body", "body": chunk, "more_body": True})


async def until_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def stream_pulse(
    hub: EventHub,
    receive: Receive,
    send: Send,
    *,
    rest_seconds: float = REST_SECONDS,
    quiet_seconds: float = QUIET_SECONDS,
    stream_seconds: float = STREAM_SECONDS,
) -> None:
    """Until the client leaves, or `stream_seconds`."""
    await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
    await _send(send, f"retry: {RETRY_MS}\n\n".encode())
    leaves = asyncio.ensure_future(until_disconnect(receive))
    ends_at = asyncio.get_running_loop().time() + stream_seconds
    try:
        async with hub.pulses() as pulse:
            while asyncio.get_running_loop().time() < ends_at:
                heard = asyncio.ensure_future(pulse.wait())
                await asyncio.wait(
                    {heard, leaves}, timeout=quiet_seconds, return_when=asyncio.FIRST_COMPLETED
                )
                heard.cancel()
                if leaves.done():
                    return
                pulse.clear()
                await _send(send, b"event: changed\ndata:\n\n")
                await asyncio.wait({leaves}, timeout=rest_seconds)
        await send({"type": "http.response.body", "body": b"", "more_body": False})
    finally:
        leaves.cancel()
