"""Server-sent events: a job's events, and the pulse for pages (`event: changed`), which then reload their
data. Sent by the event loop, without a thread or a poll per client.

A pulse is sent at most once per second, and at least every few seconds, because some changes are not
announced (a server's pause, a slot that is proven free).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime
from typing import Any, Protocol

from jobs.events.handover import Follow
from jobs.events.hub import EventHub, NewEvents, SeenEvent, done_event
from jobs.events.log_lines import LOG_EVENT, Cursor, LogChoice, as_json_lines, as_text

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

KEEP_ALIVE_SECONDS = 15.0
CHECK_SECONDS = 30.0
"""Period of checking that the reader may still follow: its key may be revoked."""
RETRY_MS = 2000
"""Time that a browser waits before it reconnects."""

HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache, no-transform"),
    (b"x-accel-buffering", b"no"),
]

REST_SECONDS = 1.0
"""Minimum time between two pulses."""
QUIET_SECONDS = 5.0
"""Maximum time between two pulses."""
STREAM_SECONDS = 45.0
"""Length of a stream of pulses. The browser then reconnects and is authorized again, so a revoked permission
ends the stream within a minute."""


class EventFormat:
    """A job's events as Server-Sent Events."""

    headers = HEADERS
    begin = f"retry: {RETRY_MS}\n\n".encode()
    keep_alive = b": still here\n\n"

    def __init__(self, follow: Follow) -> None:
        self._follow = follow
        self.after = follow.after

    def event(self, event: SeenEvent) -> bytes:
        """Return what is sent of an event; nothing if it is empty."""
        follow = self._follow
        return event.as_sse(with_output=follow.with_output, in_full=follow.in_full, streams=follow.streams)

    def done(self, job_id: str, status: str) -> bytes:
        """Return the end of the stream."""
        return done_event(job_id, status, kind=self._follow.kind)


class LogFormat:
    """A job's log lines, as text or as JSON lines. An empty line keeps a quiet connection of JSON lines
    alive; text has nothing that its reader would not show."""

    begin = b""

    def __init__(self, follow: Follow) -> None:
        assert follow.log is not None
        chosen = follow.log
        since = None if chosen.since is None else datetime.fromtimestamp(chosen.since, UTC)
        place = Cursor(follow.after, chosen.after_line)
        self._choice = LogChoice(follow.streams, chosen.attempt, since, place)
        self._write = as_json_lines if chosen.is_json else as_text
        self.after = max(0, follow.after - 1)  # the rest of that event's lines
        self.keep_alive = b"\n" if chosen.is_json else b""
        self.headers = log_headers(is_json=chosen.is_json)

    def event(self, event: SeenEvent) -> bytes:
        """Return the lines of an event; nothing for other events."""
        return self._write(self._choice.lines_of(event.seq, event.data)) if event.type == LOG_EVENT else b""

    def done(self, job_id: str, status: str) -> bytes:
        """Return the object that ends JSON lines: an answer may also end because the server stops. A text
        ends without more."""
        is_json = self._write is as_json_lines
        return f'{{"done": true, "status": "{status}"}}\n'.encode() if is_json else b""


def log_headers(*, is_json: bool) -> list[tuple[bytes, bytes]]:
    """Return the headers of a log. nosniff: a browser must not take text for a page."""
    kind = b"application/x-ndjson" if is_json else b"text/plain"
    return [
        (b"content-type", kind + b"; charset=utf-8"),
        *HEADERS[1:],
        (b"x-content-type-options", b"nosniff"),
    ]


class Watched(Protocol):
    """What a stream reads: a job (`jobs.events.hub.Watch`), or a source of another kind."""

    async def events(self) -> NewEvents | None:
        """Wait for new events; None if what is followed was deleted."""


Source = Callable[[EventHub, Follow], AbstractAsyncContextManager[Watched]]
"""Opens what a stream of one kind reads."""


async def stream_events(
    hub: EventHub,
    follow: Follow,
    receive: Receive,
    send: Send,
    *,
    may_follow: Callable[[], Awaitable[bool]],
    source: Source | None = None,
) -> None:
    """Send the past and new events of a job, then `done` when its current round ends; or its log lines.

    source: opens what is followed; None: the job. may_follow: returns False once the reader may not follow
    any more; the stream then ends without `done`.
    """
    form = LogFormat(follow) if follow.log is not None else EventFormat(follow)
    await send({"type": "http.response.start", "status": 200, "headers": form.headers})
    await _send(send, form.begin)
    disconnect = asyncio.ensure_future(until_disconnect(receive))
    now = asyncio.get_running_loop().time
    check_at = now() + CHECK_SECONDS
    next_events: asyncio.Future[NewEvents | None] | None = None
    try:
        opened = hub.watch(follow.job_id, form.after) if source is None else source(hub, follow)
        async with opened as watch:
            while True:
                # kept until it is done: cancelled, a read in another thread would lose what it has read
                next_events = next_events or asyncio.ensure_future(watch.events())
                either: set[asyncio.Future[Any]] = {next_events, disconnect}
                await asyncio.wait(
                    either,
                    timeout=min(KEEP_ALIVE_SECONDS, max(check_at - now(), 0.0)),
                    return_when=asyncio.FIRST_COMPLETED,
                )
                if disconnect.done():
                    return
                if now() >= check_at:
                    if not await may_follow():
                        break
                    check_at = now() + CHECK_SECONDS
                if not next_events.done():
                    await _send(send, form.keep_alive)
                    continue
                news, next_events = next_events.result(), None
                if news is None:
                    break
                for event in news.events:
                    await _send(send, form.event(event))
                if news.is_over:
                    await _send(send, form.done(news.job_id, news.status))
                    break
        await send({"type": "http.response.body", "body": b"", "more_body": False})
    finally:
        disconnect.cancel()
        if next_events is not None:
            next_events.cancel()


async def _send(send: Send, chunk: bytes) -> None:
    if chunk:
        await send({"type": "http.response.body", "body": chunk, "more_body": True})


async def until_disconnect(receive: Receive) -> None:
    """Return once the client has disconnected."""
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
    """Send pulses until the client disconnects or `stream_seconds` have passed.

    rest_seconds, quiet_seconds: minimum and maximum time between two pulses.
    """
    await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
    await _send(send, f"retry: {RETRY_MS}\n\n".encode())
    disconnect = asyncio.ensure_future(until_disconnect(receive))
    ends_at = asyncio.get_running_loop().time() + stream_seconds
    try:
        async with hub.pulses() as pulse:
            while asyncio.get_running_loop().time() < ends_at:
                announced = asyncio.ensure_future(pulse.wait())
                await asyncio.wait(
                    {announced, disconnect}, timeout=quiet_seconds, return_when=asyncio.FIRST_COMPLETED
                )
                announced.cancel()
                if disconnect.done():
                    return
                pulse.clear()
                await _send(send, b"event: changed\ndata:\n\n")
                await asyncio.wait({disconnect}, timeout=rest_seconds)
        await send({"type": "http.response.body", "body": b"", "more_body": False})
    finally:
        disconnect.cancel()
