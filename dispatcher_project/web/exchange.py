"""One HTTP request with a long body, or with an answer from a file. The bytes pass through a thread if the
server lends it the connection's socket (`direct_body`), else through the event loop."""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

from django.conf import settings

from artifacts.store.contract import CHUNK_BYTES, StoreUnavailable
from dispatcher_project.web.direct_body import KEY as DIRECT_KEY
from dispatcher_project.web.direct_body import ConnectionGone, DirectBody, SenderIdle
from dispatcher_project.web.request_limits import Scope, send_problem
from foundation.http_api.problems import Problem
from jobs.events.stream import Message, Receive, Send

Result = TypeVar("Result")
GRACE_SECONDS = 60.0
"""A transfer's average rate is judged after this time."""
_READY_SECONDS = 0.02
Headers = list[tuple[bytes, bytes]]
Data = bytes | memoryview


class ClientGone(Exception):
    """The connection is closed, or will be, without a further answer."""


class Transfers:
    """The transfers in progress, by tenant."""

    def __init__(self) -> None:
        self._of_tenant: Counter[int] = Counter()

    @contextmanager
    def of(self, tenant_id: int) -> Iterator[None]:
        """Count a transfer. Raises Problem 503 or 429 at the limits."""
        limits = settings.DISPATCHER
        if self._of_tenant.total() >= limits.artifact_transfers:
            raise Problem(
                503,
                "too_many_transfers",
                f"{limits.artifact_transfers} transfers are in progress, the most at once "
                "(DISPATCHER_ARTIFACT_TRANSFERS).",
                retry_after_seconds=2.0,
            )
        if self._of_tenant[tenant_id] >= limits.artifact_transfers_per_tenant:
            raise Problem(
                429,
                "too_many_transfers",
                f"{limits.artifact_transfers_per_tenant} transfers of this tenant are in progress, the most "
                "at once (DISPATCHER_ARTIFACT_TRANSFERS_PER_TENANT).",
                retry_after_seconds=2.0,
            )
        self._of_tenant[tenant_id] += 1
        try:
            yield
        finally:
            self._of_tenant[tenant_id] -= 1
            self._of_tenant += Counter()  # drops tenants without a transfer


class Exchange:
    """One request and its answer. path: without `prefix`. declared: bytes of its body; None: not declared.
    threads: for `receive` and `answer_with_file`, each of which keeps one to its end."""

    def __init__(
        self, scope: Scope, receive: Receive, send: Send, prefix: str, threads: Executor | None = None
    ) -> None:
        self._receive, self._send, self._threads = receive, send, threads
        lend: Callable[[], DirectBody] | None = scope.get(DIRECT_KEY)
        self._direct = lend() if lend is not None else None
        self._rest: int | None = None
        """Bytes of the body that are left to read from the socket; None: the event loop reads it."""
        self.method = str(scope["method"])
        self.path = str(scope["path"]).removeprefix(prefix)
        self.query = scope["query_string"].decode("latin1")
        self._headers: dict[str, str] = {
            name.decode("latin1"): value.decode("latin1") for name, value in scope["headers"]
        }
        length = self.header("content-length")
        is_chunked = "transfer-encoding" in self._headers
        self.declared = int(length) if length.isdecimal() and not is_chunked else None
        self._left = is_chunked or bool(self.declared)
        self._began_answer = False

    def header(self, name: str) -> str:
        return self._headers.get(name, "")

    async def body(self) -> Any:
        """Yield the body in pieces of about `CHUNK_BYTES`. Raises Problem 408 for a slow sender."""
        began, received = time.monotonic(), 0
        waiting = bytearray()
        while self._left:
            data = await self._next()
            received += len(data)
            waiting += data
            if len(waiting) >= CHUNK_BYTES or not self._left:
                yield bytes(waiting)
                waiting.clear()
            if is_too_slow(received, began):
                raise _too_slow()

    async def receive(self, take: Callable[[Data], None]) -> None:
        """Call `take` in a thread with the pieces of the body; each is valid until `take` returns. Raises
        Problem 408 for a slow sender, ClientGone, and what `take` raises."""
        if self._direct is None or self.declared is None:
            async for data in self.body():
                await self.in_thread(lambda data=data: take(data))  # type: ignore[misc]
            return
        began = time.monotonic()
        first = await self._next() if self._left else b""
        if not self._left:
            await self.in_thread(lambda: take(first))
            return
        declared, self._rest = self.declared, self.declared - len(first)

        def take_in_time(data: Data) -> None:
            take(data)
            if is_too_slow(declared - (self._rest or 0), began):
                raise _too_slow()

        await self.in_thread(lambda: take(first))
        await self._receive_rest(self._direct, self._rest, take_in_time)

    async def _receive_rest(self, direct: DirectBody, most: int, take: Callable[[Data], None]) -> None:
        """Read up to `most` bytes of the rest in a thread."""
        idle_seconds = settings.DISPATCHER.upload_idle_seconds

        def take_counted(data: Data) -> None:
            self._rest = (self._rest or 0) - len(data)
            take(data)

        with _socket_errors():
            arrived = direct.begin_receive()
            try:

                def receive() -> None:
                    take_counted(arrived)
                    direct.receive(max(0, most - len(arrived)), take_counted, idle_seconds)

                await self.in_thread(receive, direct.cut)
            finally:
                self._left = bool(self._rest)
                direct.end(is_whole=not self._left)

    async def in_thread(self, work: Callable[[], None], cut: Callable[[], None] = lambda: None) -> None:
        """Run in a thread; return or raise only after its end. cut: lets it end early if this task is
        cancelled."""
        working = asyncio.get_running_loop().run_in_executor(self._threads, work)
        try:
            await asyncio.shield(working)
        except asyncio.CancelledError:
            cut()
            while not working.done():  # at the server's end, tasks are cancelled twice
                with suppress(asyncio.CancelledError):
                    await asyncio.wait({working})
            working.exception()  # expected: the connection is gone
            raise

    async def _next(self) -> bytes:
        try:
            async with asyncio.timeout(settings.DISPATCHER.upload_idle_seconds):
                message = await self._receive()
        except TimeoutError:
            raise _idle() from None
        if message["type"] != "http.request":
            raise ClientGone
        self._left = message.get("more_body", False)
        return bytes(message.get("body", b""))

    async def answer(self, status: int, headers: Headers, pieces: Any = None) -> None:
        self._began_answer = True
        await self._send({"type": "http.response.start", "status": status, "headers": headers})
        async for data in pieces or _nothing():
            await self._send({"type": "http.response.body", "body": data, "more_body": True})
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def answer_with_file(
        self, status: int, headers: Headers, descriptor: int, first: int, behind: int
    ) -> None:
        """Answer with the bytes of a file from position `first` to that before `behind`; to HEAD without
        them. Raises ClientGone, and StoreUnavailable if the file became shorter."""
        if self._direct is None or self.method == "HEAD" or first == behind:
            await self.answer(status, headers, self._pieces_of(descriptor, first, behind))
            return
        self._began_answer = True
        await self._send({"type": "http.response.start", "status": status, "headers": headers})
        await self._send_file(self._direct, descriptor, first, behind)
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send_file(self, direct: DirectBody, descriptor: int, first: int, behind: int) -> None:
        began = time.monotonic()

        def on_sent(at: int) -> None:
            if is_too_slow(at - first, began):
                raise ClientGone

        with _socket_errors():
            while not direct.is_ready_to_send():
                await asyncio.sleep(_READY_SECONDS)
            direct.begin_send(behind - first)
            try:
                await self.in_thread(lambda: direct.send(descriptor, first, behind, on_sent), direct.cut)
            finally:
                direct.end(is_whole=False)

    async def _pieces_of(self, descriptor: int, first: int, behind: int) -> Any:
        began, at = time.monotonic(), first
        while at < behind and self.method != "HEAD":
            length, found = min(CHUNK_BYTES, behind - at), [b""]

            def read(at: int = at, length: int = length, found: list[bytes] = found) -> None:
                found[0] = os.pread(descriptor, length, at)

            await self.in_thread(read)
            if not found[0]:
                raise _shorter()
            at += len(found[0])
            yield found[0]
            if is_too_slow(at - first, began):
                raise ClientGone

    async def refuse(self, problem: Problem) -> None:
        """Send the problem, then drop the rest of the body, so that the client reads the answer. An answer
        that has begun is cut, which its Content-Length shows to the client."""
        if self._began_answer:
            return
        self._began_answer = True

        async def send(message: Message) -> None:
            if message["type"] == "http.response.body":
                await self._send({**message, "more_body": True})
                await self._drop()
                message = {"type": "http.response.body", "body": b"", "more_body": False}
            await self._send(message)

        if problem.status >= 400 and self._left:
            problem.headers["Connection"] = "close"
        await send_problem(send, problem)

    async def _drop(self) -> None:
        dropped, most = 0, settings.DISPATCHER.refused_body_bytes
        try:
            if self._direct is not None and self._rest:
                await self._receive_rest(self._direct, min(self._rest, most), lambda data: None)
                return
            while self._left and dropped <= most:
                dropped += len(await self._next())
        except (Problem, ClientGone):
            return


async def _nothing() -> Any:
    return
    yield


def is_too_slow(moved: int, began: float) -> bool:
    """Return True if a transfer's average rate is below the limit. moved: bytes. began: monotonic time."""
    took = time.monotonic() - began
    return took > GRACE_SECONDS and moved < took * settings.DISPATCHER.artifact_bytes_per_second


@contextmanager
def _socket_errors() -> Iterator[None]:
    """Turn errors of a body that a thread moves into those of the exchange."""
    try:
        yield
    except ConnectionGone:
        raise ClientGone from None
    except SenderIdle:
        raise _idle() from None
    except EOFError:
        raise _shorter() from None


def _shorter() -> StoreUnavailable:
    return StoreUnavailable("The object became shorter.")


def _idle() -> Problem:
    seconds = settings.DISPATCHER.upload_idle_seconds
    return _late(f"No part of the body arrived for {seconds:g} s (DISPATCHER_UPLOAD_IDLE_SECONDS).")


def _too_slow() -> Problem:
    rate = settings.DISPATCHER.artifact_bytes_per_second
    return _late(
        f"The body came at less than {rate} bytes per second (DISPATCHER_ARTIFACT_BYTES_PER_SECOND), on "
        f"average after {GRACE_SECONDS:g} s."
    )


def _late(why: str) -> Problem:
    return Problem(408, "upload_too_slow", why, headers={"Connection": "close"})


async def in_thread_of(threads: Executor, work: Callable[[], Result]) -> Result:
    """Return the function's result; it is called in a thread of this pool."""
    return await asyncio.get_running_loop().run_in_executor(threads, work)
