"""Limits on requests, so that a slow client, a tenant with many requests, or a hanging database does not
occupy the few threads.

*Bodies* are received whole, within a time limit, before a thread gets the request. Any client may send a
small body. A long one for the API is received only after its view, which knows the sender and the limit, has
requested it (`foundation.http_api.json_body`). The body of a refused request is read after the answer and
dropped, so that the client reads the answer.

*Shares* limit one tenant's requests, bytes of bodies, threads and waits at once. A request with a recently
used key counts for its tenant, every other one for its address: its sender is unknown until a thread has
checked the key.

*The deadline*: a request under `/queue` without an answer in time gets a 503. Its thread continues, and the
late answer is dropped. A request that has no thread by then does not get one.
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
from foundation.http_api.json_body import BODY_PENDING_KEY
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
    """Send a problem+json response, and count it as a refusal."""
    count_refusal(problem)
    content = problem.as_bytes()
    headers = [(b"content-type", MEDIA_TYPE.encode()), (b"content-length", str(len(content)).encode())]
    headers += [(name.lower().encode(), value.encode()) for name, value in problem.headers.items()]
    await send({"type": "http.response.start", "status": problem.status, "headers": headers})
    await send({"type": "http.response.body", "body": content, "more_body": False})


# -- bodies ------------------------------------------------------------------------------------

SMALL_BYTES = 256 * 1024
MAX_UNDECLARED_BYTES = 1024 * 1024
"""Longest chunked body, and longest body of a request outside the API (forms of the admin)."""
_IN_MEMORY_BYTES = 1024 * 1024
"""A longer body is kept in a file until a thread reads it."""
_PART_BYTES = 1024 * 1024
MAX_KEPT_BYTES = 256 * 1024
"""Longest body after which a connection to SQLite stays open."""


class BodyTooLong(Exception):
    """The body is longer than the limit of its path."""


class BodyTooSlow(Exception):
    """The client stopped sending the body, or did not send all of it in time."""


class NoRoomForBody(Exception):
    """The disk for long bodies is full or not writable."""


class ClientGone(Exception):
    """The client closed its connection before the answer."""


class RequestBody:
    """The body of one request; wraps its `receive`.

    budget: memory for the bodies of the whole process. declared: Content-Length; None if chunked or without
    body.
    """

    def __init__(self, receive: Receive, headers: list[tuple[bytes, bytes]], budget: BodyBudget) -> None:
        named = dict(headers)
        self.chunked = b"transfer-encoding" in named  # then without Content-Length (protocol.py)
        length = named.get(b"content-length", b"")
        self.declared = int(length) if length.isdigit() else None
        self._receive = receive
        self._budget = budget
        self._given_up = False
        self._waiting: asyncio.Timeout | None = None
        self._ended = not self.chunked and not self.declared
        self._kept: SpooledTemporaryFile[bytes] | None = None
        self._length = 0
        self._left: int | None = None
        """Received bytes that the application has not read yet; None after it has read the last."""

    @property
    def is_long(self) -> bool:
        return (self.declared or 0) > SMALL_BYTES

    @property
    def most_bytes(self) -> int:
        """The most bytes that the body may have."""
        return MAX_UNDECLARED_BYTES if self.chunked else self.declared or 0

    async def take_in(self, *, at_most: int | None = None) -> int | None:
        """Receive the whole body. Return its length, None without a body.

        Raises BodyTooLong, BodyTooSlow, NoRoomForBody, ClientGone.
        """
        if self._ended:
            return None
        if at_most is not None and (self.declared or 0) > at_most:
            raise BodyTooLong
        kept = self._kept = SpooledTemporaryFile(_IN_MEMORY_BYTES)  # noqa: SIM115 - `close` is called
        until = time.monotonic() + settings.DISPATCHER.upload_seconds
        waiting, length, more = bytearray(), 0, True
        while more:
            message = await self._next(until)
            if message["type"] != "http.request":
                raise ClientGone
            data = message.get("body", b"")
            waiting += data
            length += len(data)
            more = message.get("more_body", False)
            if more:
                self._budget.hold(self, min(length, _IN_MEMORY_BYTES))
            if at_most is not None and length > at_most:
                raise BodyTooLong
            if len(waiting) >= _PART_BYTES or not more:
                await self._keep(kept, bytes(waiting), length)
                waiting.clear()
        self._ended = True
        self._budget.release(self)
        self._left = self._length = length
        kept.seek(0)
        return self._left

    async def _keep(self, kept: SpooledTemporaryFile[bytes], data: bytes, length: int) -> None:
        """Append to the body. Raises NoRoomForBody."""
        try:
            if length <= _IN_MEMORY_BYTES:
                kept.write(data)
            else:  # the event loop never waits for a disk
                await asyncio.to_thread(kept.write, data)
        except OSError as error:
            log.error("body_not_stored", error=str(error))
            raise NoRoomForBody from None

    def rewind(self) -> None:
        """Let the application read a body that was received whole from its beginning."""
        if self._kept is not None:
            self._left = self._length or None
            self._kept.seek(0)

    async def receive(self) -> Message:
        """ASGI `receive` for the application: the received body, then the client's disconnect."""
        if self._left is None or self._kept is None:
            return await self._receive()
        is_in_memory = self._length <= _IN_MEMORY_BYTES
        read = self._kept.read
        part = read(_PART_BYTES) if is_in_memory else await asyncio.to_thread(read, _PART_BYTES)
        if self._left is None:  # closed meanwhile
            return {"type": "http.disconnect"}
        self._left = self._left - len(part) or None
        return {"type": "http.request", "body": part, "more_body": self._left is not None}

    async def drop(self) -> None:
        """Read and drop the rest of the body, within the limits of an upload. A connection closed with unread
        bytes is reset, and its client would not read the answer."""
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
        """End the upload with BodyTooSlow, because other bodies need the memory."""
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
    """A body that is still arriving."""

    def give_up(self) -> None:
        """Answer 408: the body did not arrive in time."""


class BodyBudget:
    """Memory for request bodies that are still arriving, over all connections of a web process. If it is used
    up, the oldest upload is ended, so that slow senders do not block others.

    most_bytes: memory for all of them.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._bytes = 0
        self._arriving: dict[Arriving, int] = {}
        """Bytes of each body, oldest first."""

    def hold(self, body: Arriving, size: int) -> None:
        """Note that a body has `size` bytes in memory now."""
        self._bytes += size - self._arriving.get(body, 0)
        self._arriving[body] = size
        while self._bytes > self._most_bytes and len(self._arriving) > 1:
            oldest = next(iter(self._arriving))
            self.release(oldest)
            oldest.give_up()

    def release(self, body: Arriving) -> None:
        """Note that a body has arrived or was ended."""
        self._bytes -= self._arriving.pop(body, 0)


def forget_long_values(body_bytes: int) -> None:
    """Close the thread's connection to SQLite after a long body. Python's sqlite3 keeps the last values of
    each compiled statement: 32 MB of jobs in each thread that once stored them."""
    if body_bytes > MAX_KEPT_BYTES and connection.vendor == "sqlite":
        connection.close()


# -- shares of tenants and addresses -----------------------------------------------------------

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
"""Lists are heavy: their answers may have megabytes."""
_LONG_BYTES = 1024 * 1024
_RETRY_SECONDS = 1.0


class TooManyInFlight(Problem):
    """429: the tenant or address has used up its share. unit: plural noun for the message."""

    def __init__(self, most: int, unit: str) -> None:
        super().__init__(
            429,
            CODE,
            f"{most} {unit} of this tenant or address are in progress, the most at once.",
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
    """Counts what each holder has in progress, on one event loop.

    unit: plural noun for the message. most: limit of each holder.
    """

    def __init__(self, unit: str, most: int) -> None:
        self._unit, self.most = unit, most
        self._held: Counter[str] = Counter()

    @contextmanager
    def of(self, holder: str, amount: int = 1) -> Iterator[None]:
        """Hold `amount` of the holder's share. Raises TooManyInFlight; a single request is always
        admitted."""
        if amount and self._held[holder] and self._held[holder] + amount > self.most:
            raise TooManyInFlight(self.most, self._unit)
        self._held[holder] += amount
        try:
            yield
        finally:
            self._held[holder] -= amount
            if not self._held[holder]:
                del self._held[holder]  # drops holders without a request


@dataclass(slots=True)
class _Turns:
    """The semaphores of one holder. users: its requests that wait or run."""

    threads: asyncio.Semaphore
    heavy: asyncio.Semaphore
    long: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(1))
    users: int = 0


class FairThreads:
    """Shares the threads between holders: each request waits for its turn. Raises ClientGone if its
    connection was closed by then.

    site: the ASGI application in threads. at_once: most threads of one holder; its other requests wait.
    heavy_at_once: most heavy requests of all holders, who take turns: threads that compute take the
    interpreter from each other and from every short request. Each holder has one long body at a time, because
    the values of a body take many times its memory.
    """

    def __init__(self, site: Application, at_once: int, heavy_at_once: int) -> None:
        self._site, self._at_once, self._heavy_at_once = site, at_once, heavy_at_once
        self._heavy = asyncio.Semaphore(heavy_at_once)
        self._turns: dict[str, _Turns] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        messages: list[Message] = []

        async def take(message: Message) -> None:
            messages.append(message)

        async with self._turn(scope):
            if is_client_gone(scope):  # while it waited for its turn
                raise ClientGone
            await self._site(scope, receive, take)
        for message in messages:  # after the turn: a client that does not read occupies no thread
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
                for semaphore in self._needed(scope, turns):
                    await held.enter_async_context(semaphore)
                yield
        finally:
            turns.users -= 1
            if not turns.users:
                del self._turns[holder]

    def _needed(self, scope: Scope, turns: _Turns) -> Sequence[asyncio.Semaphore]:
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
    if BODY_PENDING_KEY in scope:  # the body is not received yet
        return 0
    length = next((value for name, value in scope["headers"] if name == b"content-length"), b"")
    return int(length) if length.isdigit() else 0


# -- response deadline -------------------------------------------------------------------------

WsgiApplication = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]

_BOUNDED = f"{API_ROOT}/queue/"
_GIVEN_UP = "dispatcher.given_up"


class ResponseDeadline:
    """Answers 503 to a request under `/queue` without an answer in time.

    seconds: from the end of the request's body, which is received before a thread gets the request.
    """

    def __init__(self, site: Application, seconds: float) -> None:
        self._site = site
        self._seconds = seconds
        self._late: set[asyncio.Future[None]] = set()

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
        self._late.add(answering)
        answering.add_done_callback(self._forget)
        log.error("response_deadline_exceeded", path=scope["path"], seconds=self._seconds)
        await send_problem(send, _overdue())

    def _forget(self, answering: asyncio.Future[None]) -> None:
        self._late.discard(answering)
        if not answering.cancelled() and (error := answering.exception()) is not None:
            log.warning("late_response_failed", error=str(error))


class _Exchange:
    """Sends a request's answer until the request is given up."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.answered = False
        self.given_up = threading.Event()

    async def send(self, message: Message) -> None:
        if not self.given_up.is_set():
            self.answered = True
            await self._send(message)


def unless_given_up(application: WsgiApplication) -> WsgiApplication:
    """Wrap a WSGI application to skip requests that got their 503 before a thread took them."""

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
        "The request took too long; it may or may not take effect. Try again with the same Idempotency-Key.",
    )
