"""What one request may occupy, and for how long: a client that sends slowly, a tenant with many requests, or
a database that hangs must not hold the few threads that answer.

*Bodies* are whole before a thread gets them, and their clients have so long to send them. Anybody may send a
small one. A long one for the API is asked for by its view (`foundation.http_api.json_body`), which knows who
sends it and how long it may be; until then it is left with the client. The body of a refused request is read
after the answer and dropped, so that its client reads the answer.

*Shares*: requests, bytes of bodies, threads and waits of one tenant at once. A request with a key that was in
use a moment ago counts for its tenant, every other one for its address: who sends it is not known before a
thread has looked the key up.

*The deadline*: a request under `/queue` that has no answer after a while gets a 503. The thread goes on, and
what it still says goes nowhere. A request that has no thread yet never gets one: its client was told to come
again.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from tempfile import SpooledTemporaryFile
from typing import Any, Protocol

import structlog
from django.conf import settings
from django.db import connection

import jobs.ports
from dispatcher_project.web.protocol import is_client_gone
from foundation.http_api.json_body import LATER_KEY
from foundation.http_api.problems import MEDIA_TYPE, Problem
from foundation.network import network_of
from jobs.api.authentication import cached_tenant
from jobs.api.errors import count_refusal
from jobs.api.representations import API_ROOT
from jobs.events.stream import Message, Receive, Send

log = structlog.get_logger(__name__)

Scope = dict[str, Any]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]


async def send_problem(send: Send, problem: Problem) -> None:
    count_refusal(problem)
    content = problem.as_bytes()
    headers = [(b"content-type", MEDIA_TYPE.encode()), (b"content-length", str(len(content)).encode())]
    headers += [(name.lower().encode(), value.encode()) for name, value in problem.headers.items()]
    await send({"type": "http.response.start", "status": problem.status, "headers": headers})
    await send({"type": "http.response.body", "body": content, "more_body": False})


# -- bodies ------------------------------------------------------------------------------------

SMALL_BYTES = 256 * 1024
MAX_UNDECLARED_BYTES = 1024 * 1024
"""Of a chunked body, and of any that is not for the API: forms of the admin site."""
_IN_MEMORY_BYTES = 1024 * 1024
"""A longer body is kept in a file until a thread reads it."""
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
    """The client closed its connection before the answer."""


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


# -- what one tenant, or one address, may have at once ----------------------------------------

HOLDER_KEY = "dispatcher.holder"
CODE = "too_many_requests_in_flight"
LIGHT_BYTES = 64 * 1024
"""A request with a longer body is heavy."""
BATCH = f"{API_ROOT}/queue/submit-batch"
SMALL_BATCH_BYTES = 8 * 1024
"""A longer batch is heavy too: it may have hundreds of jobs."""
LISTS = frozenset(
    f"{API_ROOT}/{path}" for path in ("queue/jobs", "admin/dlq", "admin/dlq/groups", "admin/audit")
)
"""Heavy: their answers may have megabytes."""
_LONG_BYTES = 1024 * 1024
_RETRY_SECONDS = 1.0


class TooManyInFlight(Problem):
    """429: the tenant, or the address, has as much under way as it may."""

    def __init__(self, most: int, what: str) -> None:
        super().__init__(
            429,
            CODE,
            f"{most} {what} of this tenant or address are under way, the most at once.",
            retry_after_seconds=_RETRY_SECONDS,
        )


def holder_of(scope: Scope) -> str:
    """Return the tenant or the address whose share a request uses."""
    known: str | None = scope.get(HOLDER_KEY)
    if known is not None:
        return known
    for name, value in scope["headers"]:
        if name == b"authorization":
            tenant = cached_tenant(value.decode("latin1"), jobs.ports.production_ports())
            if tenant is not None:
                return f"tenant {tenant}"
    client = scope.get("client")
    return f"address {network_of(client[0]) if client else ''}"


class InFlight:
    """Of one event loop. what: for people. most: of each holder."""

    def __init__(self, what: str, most: int) -> None:
        self._what, self.most = what, most
        self._held: Counter[str] = Counter()

    @contextmanager
    def of(self, holder: str, amount: int = 1) -> Iterator[None]:
        """Raises TooManyInFlight. One that is alone is always let in."""
        if amount and self._held[holder] and self._held[holder] + amount > self.most:
            raise TooManyInFlight(self.most, self._what)
        self._held[holder] += amount
        try:
            yield
        finally:
            self._held[holder] -= amount
            if not self._held[holder]:
                del self._held[holder]  # holders without a request are forgotten


@dataclass(slots=True)
class _Turns:
    threads: asyncio.Semaphore
    heavy: asyncio.Semaphore
    long: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(1))
    users: int = 0


class FairThreads:
    """Turns at the threads that answer requests. Raises ClientGone if the connection was closed while its
    request waited for a turn.

    site: answers in threads. at_once: threads that one holder may have; its other requests wait.

    heavy_at_once: requests that compute for long under way in the process, of all holders, who take turns:
    threads that compute take the interpreter from each other, and from every short request. Of each holder
    one long body at a time, whose values take many times its memory.
    """

    def __init__(self, site: Application, at_once: int, heavy_at_once: int) -> None:
        self._site, self._at_once, self._heavy_at_once = site, at_once, heavy_at_once
        self._heavy = asyncio.Semaphore(heavy_at_once)
        self._turns: dict[str, _Turns] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        said: list[Message] = []

        async def take(message: Message) -> None:
            said.append(message)

        async with self._turn(scope):
            if is_client_gone(scope):  # while it waited for its turn
                raise ClientGone
            await self._site(scope, receive, take)
        for message in said:  # only now: a client that does not read holds neither turn nor thread
            await send(message)

    @asynccontextmanager
    async def _turn(self, scope: Scope) -> AsyncIterator[None]:
        holder = holder_of(scope)
        turns = self._turns.get(holder)
        if turns is None:
            own, heavy = asyncio.Semaphore(self._at_once), asyncio.Semaphore(self._heavy_at_once)
            turns = self._turns[holder] = _Turns(own, heavy)
        turns.users += 1
        try:
            async with AsyncExitStack() as held:
                for turn in self._wanted(scope, turns):
                    await held.enter_async_context(turn)
                yield
        finally:
            turns.users -= 1
            if not turns.users:
                del self._turns[holder]

    def _wanted(self, scope: Scope, turns: _Turns) -> Sequence[asyncio.Semaphore]:
        """The semaphores of a request, to be taken in this order. The shared one comes last: a request that
        waits for its holder's own semaphores never holds it. A heavy request that waits for the shared one
        holds a thread of its holder, so the holder's `heavy` semaphore bounds how many of them wait."""
        length = _body_bytes(scope)
        is_list = scope["path"] in LISTS
        if not is_list and length <= (SMALL_BATCH_BYTES if scope["path"] == BATCH else LIGHT_BYTES):
            return (turns.threads,)
        heavy = (turns.heavy, turns.threads, self._heavy)
        return heavy if length <= _LONG_BYTES else (turns.long, *heavy)


def _body_bytes(scope: Scope) -> int:
    if LATER_KEY in scope:  # its body is left with the client
        return 0
    length = next((value for name, value in scope["headers"] if name == b"content-length"), b"")
    return int(length) if length.isdigit() else 0


# -- an answer in bounded time ---------------------------------------------------------------

WsgiApplication = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]

_BOUNDED = f"{API_ROOT}/queue/"
_GIVEN_UP = "dispatcher.given_up"


class ResponseDeadline:
    """seconds: counted from the request's whole body, which was taken in before there was a thread for it."""

    def __init__(self, site: Application, seconds: float) -> None:
        self._site = site
        self._seconds = seconds
        self._left_behind: set[asyncio.Future[None]] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not scope["path"].startswith(_BOUNDED):
            await self._site(scope, receive, send)
            return
        exchange, until = _Exchange(send), time.monotonic() + self._seconds
        scope = {**scope, _GIVEN_UP: exchange.given_up}
        answering = asyncio.ensure_future(self._site(scope, receive, exchange.send))
        try:
            while not (answering.done() or exchange.answered):
                left = until - time.monotonic()
                if left <= 0:
                    exchange.given_up.set()
                    break
                await asyncio.wait({answering}, timeout=left)
            if not exchange.given_up.is_set():
                await answering
                return
        except asyncio.CancelledError:
            answering.cancel()
            raise
        self._left_behind.add(answering)
        answering.add_done_callback(self._is_over)
        log.error("answer_overdue", path=scope["path"], seconds=self._seconds)
        await send_problem(send, _overdue())

    def _is_over(self, answering: asyncio.Future[None]) -> None:
        self._left_behind.discard(answering)
        if not answering.cancelled() and (error := answering.exception()) is not None:
            log.warning("late_answer_failed", error=str(error))


class _Exchange:
    """One request's answer."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.answered = False
        self.given_up = threading.Event()

    async def send(self, message: Message) -> None:
        if not self.given_up.is_set():
            self.answered = True
            await self._send(message)


def unless_given_up(application: WsgiApplication) -> WsgiApplication:
    """Skip requests that were answered with 503 before a thread took them."""

    def begin(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        if is_given_up(environ.get("asgi.scope", {})):
            start_response("503 Service Unavailable", [])
            return [b""]
        return application(environ, start_response)

    return begin


def is_given_up(scope: Scope) -> bool:
    """Return True if the request was answered with 503 at its deadline."""
    given_up = scope.get(_GIVEN_UP)
    return given_up is not None and given_up.is_set()


def _overdue() -> Problem:
    return Problem(
        503,
        "no_answer_in_time",
        "It took too long; it is not known what became of it. Try again, under the same Idempotency-Key.",
    )
