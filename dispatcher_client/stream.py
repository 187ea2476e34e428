"""Server-Sent Events of a job: parsing, and reconnecting."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from .errors import AnswerTooLarge, NoAnswer, Unavailable, read_json, read_problem
from .transport import OpenAnswer, Request, Transport, pause_after

T = TypeVar("T")

SILENCE_SECONDS = 45.0
"""The dispatcher sends a comment every 15 s; after three missing ones the connection is dead."""
RETRY_SECONDS = 2.0
"""The pause before a reconnect, unless the server sends another."""
_MAX_RETRY_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Event:
    """An event of a job. type: queued, started, …; the last one is done. id: in the job's event log; "" for
    done."""

    type: str
    id: str
    data: Any


class Parser(Protocol[T]):
    """Parses the answers of one connection after another.

    request: returns the next connection's request, which goes on after what was read. feed: returns the items
    that end in a piece. end: an answer came to its whole end. is_over: nothing follows. pause_seconds: before
    the next connection. last_line_at: on the monotonic clock.
    """

    content_type: str

    @property
    def pause_seconds(self) -> float: ...
    @property
    def last_line_at(self) -> float: ...
    @property
    def is_over(self) -> bool: ...
    def request(self) -> Request: ...
    def feed(self, piece: bytes) -> list[T]: ...
    def end(self) -> None: ...


async def follow(transport: Transport, parser: Parser[T], *, retry_seconds: float) -> AsyncGenerator[T, None]:
    """Yield what the parser reads until it is over, across reconnects.

    Raises NoAnswer or Unavailable if no reconnect succeeded for `retry_seconds`, and Problem if it was
    refused."""
    failures, failing_since = 0, 0.0
    while True:
        try:
            async with aclosing(_connection(transport, parser)) as items:
                async for item in items:
                    yield item
            if parser.is_over:
                return
            pause = parser.pause_seconds
        except (NoAnswer, Unavailable) as error:
            if parser.is_over:
                return
            now = time.monotonic()
            if not failures or parser.last_line_at > failing_since:
                failures, failing_since = 0, now
            failures += 1
            pause = pause_after(error, failures)
            if now + pause > failing_since + retry_seconds:
                raise
        await transport.sleep(pause)


async def _connection(transport: Transport, parser: Parser[T]) -> AsyncGenerator[T, None]:
    async with transport.opened(parser.request()) as answer:
        if answer.status != 200:
            raise read_problem(answer.status, answer.headers, await _start_of(answer))
        if not answer.headers.get("content-type", "").startswith(parser.content_type):
            raise NoAnswer(f"the answer is not {parser.content_type}")
        async for piece in answer.pieces:
            for item in parser.feed(piece):
                yield item
            if parser.is_over:
                return
        parser.end()


_MAX_PROBLEM_BYTES = 1024 * 1024


async def _start_of(answer: OpenAnswer) -> bytes:
    """Return the body, or its start if it is long."""
    body = b""
    async for piece in answer.pieces:
        body += piece
        if len(body) > _MAX_PROBLEM_BYTES:
            break
    return body


class EventParser:
    """Parses the bytes of a job's event streams, one connection after another.

    last_id: of the last whole event. max_event_bytes: a longer event raises AnswerTooLarge."""

    content_type = "text/event-stream"

    def __init__(self, last_id: str, max_event_bytes: int, job_path: str = "") -> None:
        self._path = job_path
        self.last_id = last_id
        self.is_over = False
        self.pause_seconds = RETRY_SECONDS
        self.last_line_at = time.monotonic()
        self._max_event_bytes = max_event_bytes
        self._type = self._id = ""
        self.begin()

    def request(self) -> Request:
        """Return the request of the next connection, and begin to read its answer."""
        self.begin()
        headers = {"Accept": self.content_type}
        if self.last_id:
            headers["Last-Event-ID"] = self.last_id
        return Request("GET", f"{self._path}/events", SILENCE_SECONDS, headers=headers)

    def end(self) -> None:
        """Without `done` before it, the end of an answer is not that of the events."""

    def begin(self) -> None:
        """Begin a connection. An event of the last one that was cut off is dropped (SSE standard)."""
        self._rest: list[bytes] = []  # pieces of a line without its end
        self._size = 0  # bytes of the event so far
        self._forget_event()

    def feed(self, piece: bytes) -> list[Event]:
        """Return the events that end in this piece. Raises AnswerTooLarge."""
        events = []
        *ends, rest = piece.split(b"\n")
        for end in ends:
            self._grow(len(end))
            line = b"".join((*self._rest, end))
            self._rest.clear()
            if (event := self._line(line.decode(errors="replace").rstrip("\r\n"))) is not None:
                events.append(event)
                if self.is_over:
                    return events
        self._grow(len(rest))
        self._rest.append(rest)
        return events

    def _grow(self, size: int) -> None:
        self._size += size
        if self._size > self._max_event_bytes:
            raise AnswerTooLarge(self._max_event_bytes)

    def _line(self, line: str) -> Event | None:
        """Return the event that this line ends: an event ends with an empty line."""
        self.last_line_at = time.monotonic()
        if not line:
            event = None
            if self._data:
                self.last_id = self._id or self.last_id
                event = Event(self._type or "message", self._id, _read_data("\n".join(self._data)))
                self.is_over = event.type == "done"
            self._forget_event()
            self._size = 0
            return event
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "event":
            self._type = value
        elif name == "data":
            self._data.append(value)
        elif name == "id":
            self._id = value
        elif name == "retry" and value.isascii() and value.isdigit():
            self.pause_seconds = min(int(value[:9]) / 1000, _MAX_RETRY_SECONDS)
        return None

    def _forget_event(self) -> None:
        self._data: list[str] = []
        self._type = self._id = ""


def _read_data(text: str) -> Any:
    try:
        return read_json(text)
    except ValueError:
        return text
