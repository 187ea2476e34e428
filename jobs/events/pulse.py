"""A `text/event-stream` that says that something changed, for pages that then ask what: `event: changed`.

At most one a second however busy the line is, and one every few seconds when it is quiet, because not
everything is announced (a server that rests, a slot that is proven free).
"""

from __future__ import annotations

import asyncio

from jobs.events.hub import EventHub
from jobs.events.stream import HEADERS, RETRY_MS, Receive, Send, until_disconnect

REST_SECONDS = 1.0
QUIET_SECONDS = 5.0
STREAM_SECONDS = 45.0
"""Then the browser comes again, and shows again that it may: within a minute of what was taken from it."""


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
    await _send_text(send, f"retry: {RETRY_MS}\n\n")
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
                await _send_text(send, "event: changed\ndata:\n\n")
                await asyncio.wait({leaves}, timeout=rest_seconds)
        await send({"type": "http.response.body", "body": b"", "more_body": False})
    finally:
        leaves.cancel()


async def _send_text(send: Send, text: str) -> None:
    await send({"type": "http.response.body", "body": text.encode(), "more_body": True})
