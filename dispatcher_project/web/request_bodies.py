"""Request bodies on the event loop: a client that sends slowly, or not at all, must not hold one of the few
threads. So a body is whole before a thread gets it, and its client has so long to send it.

Anybody may send a small one. A long one for the API is asked for by its view
(`foundation.http_api.json_body`), which knows who sends it and how long it may be; until then it is left with
the client. The body of a refused request is read after the answer and dropped, so that its client reads the
answer.
"""

from __future__ import annotations

import asyncio
import time
from tempfile import SpooledTemporaryFile
from typing import Protocol

import structlog
from django.conf import settings
from django.db import connection

from jobs.events.stream import Message, Receive

log = structlog.get_logger(__name__)

SMALL_BYTES = 256 * 1024
MAX_UNDECLARED_BYTES = 1024 * 1024
"""Of a chunked body, and of any that is not for the API: forms of the admin site."""
_IN_MEMORY_BYTES = 1024 * 1024
"""What is longer waits in a file for its thread."""
_PART_BYTES = 1024 * 1024
MOST_KEPT_BYTES = 256 * 1024
"""Of bodies whose values may stay in a database connection."""


class BodyTooLong(Exception):
    """It is longer than anything that is sent there."""


class BodyTooSlow(Exception):
    """Its client stopped sending, or did not come to the end in time."""


class NoRoomForBody(Exception):
    """The disk that long bodies wait on is full, or can't be written to."""


class ClientGone(Exception):
    """Nobody is left to be answered."""


class RequestBody:
    """Wraps `receive` of one request. declared: its Content-Length; None: chunked, or no body. budget: of all
    bodies of this process."""

    def __init__(self, receive: Receive, headers: list[tuple[bytes, bytes]], budget: BodyBudget) -> None:
        named = dict(headers)
        self.chunked = b"transfer-encoding" in named  # beside it a Content-Length says nothing
        length = b"" if self.chunked else named.get(b"content-length", b"")
        self.declared = int(length) if length.isdigit() else None
        self._receive = receive
        self._budget = budget
        self._given_up = False
        self._waiting: asyncio.Timeout | None = None
        self._ended = not self.chunked and not self.declared
        self._kept: SpooledTemporaryFile[bytes] | None = None
        self._left: int | None = None
        """Of what was taken in, and the application did not get yet. None: it got the last of it."""

    @property
    def is_long(self) -> bool:
        return (self.declared or 0) > SMALL_BYTES

    @property
    def most_bytes(self) -> int:
        """What it may take at most."""
        return MAX_UNDECLARED_BYTES if self.chunked else self.declared or 0

    async def take_in(self, *, at_most: int | None = None) -> int | None:
        """Reads the body whole. Returns its length, None if there is none.

        Raises BodyTooLong, BodyTooSlow, NoRoomForBody, ClientGone.
        """
        if self._ended:
            return None
        if at_most is not None and (self.declared or 0) > at_most:
            raise BodyTooLong
        kept = self._kept = SpooledTemporaryFile(_IN_MEMORY_BYTES)  # noqa: SIM115 - `close` is called
        until = time.monotonic() + settings.DISPATCHER.upload_seconds
        more = True
        while more:
            message = await self._next(until)
            if message["type"] != "http.request":
                raise ClientGone
            try:
                kept.write(message.get("body", b""))
            except OSError as error:
                log.error("body_not_kept", error=str(error))
                raise NoRoomForBody from None
            more = message.get("more_body", False)
            if more:
                self._budget.hold(self, min(kept.tell(), _IN_MEMORY_BYTES))
            if at_most is not None and kept.tell() > at_most:
                raise BodyTooLong
        self._ended = True
        self._budget.release(self)
        self._left = kept.tell()
        kept.seek(0)
        return self._left

    async def receive(self) -> Message:
        """What the application gets; after the body only the disconnect is left."""
        if self._left is None or self._kept is None:
            return await self._receive()
        part = self._kept.read(_PART_BYTES)
        self._left = self._left - len(part) or None
        return {"type": "http.request", "body": part, "more_body": self._left is not None}

    async def drop(self) -> None:
        """Reads what the client still sends, and keeps nothing: a connection that is closed over unread bytes
        is reset, and its client never reads the answer. Bounded in bytes and time, as an upload is."""
        limits, dropped = settings.DISPATCHER, 0
        until = time.monotonic() + limits.upload_seconds
        while not self._ended and dropped <= limits.refused_body_bytes:
            try:
                message = await self._next(until)
            except BodyTooSlow:
                return
            dropped += len(message.get("body", b""))
            self._ended = message["type"] != "http.request" or not message.get("more_body", False)

    def give_up(self) -> None:
        """Others' bodies need its memory."""
        self._given_up = True
        if self._waiting is not None and not self._waiting.expired():
            self._waiting.reschedule(0.0)

    def close(self) -> None:
        self._left = None
        self._budget.release(self)
        if self._kept is not None:
            self._kept.close()

    async def _next(self, until: float) -> Message:
        patience = min(settings.DISPATCHER.upload_idle_seconds, until - time.monotonic())
        if self._given_up:
            raise BodyTooSlow
        try:
            async with asyncio.timeout(patience) as self._waiting:
                return await self._receive()
        except TimeoutError:
            raise BodyTooSlow from None
        finally:
            self._waiting = None


class Arriving(Protocol):
    def give_up(self) -> None:
        """Answer 408: the body did not arrive in time."""


class BodyBudget:
    """Memory of request bodies that are still arriving, over all connections of a web process. Where it is
    used up, the body goes that has taken longest: a sender that drips one in never keeps others out.

    most_bytes: in memory at once."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._bytes = 0
        self._arriving: dict[Arriving, int] = {}
        """Bytes of each, by when it began."""

    def hold(self, body: Arriving, size: int) -> None:
        """It has so many bytes in memory now."""
        self._bytes += size - self._arriving.get(body, 0)
        self._arriving[body] = size
        while self._bytes > self._most_bytes and len(self._arriving) > 1:
            oldest = next(iter(self._arriving))
            self.release(oldest)
            oldest.give_up()

    def release(self, body: Arriving) -> None:
        """It has arrived, or never will."""
        self._bytes -= self._arriving.pop(body, 0)


def forget_long_values(body_bytes: int) -> None:
    """Close the database connection after a long body, in the thread that answered it: Python's sqlite3 keeps
    the values that a compiled statement was executed with last, 32 MB of jobs in each thread that once stored
    them."""
    if body_bytes > MOST_KEPT_BYTES and connection.vendor == "sqlite":
        connection.close()
