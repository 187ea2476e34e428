"""One HTTP request whose body arrives in pieces on the event loop, and its answer."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.conf import settings

from artifacts.store.contract import CHUNK_BYTES
from dispatcher_project.web.request_limits import Scope, send_problem
from foundation.http_api.problems import Problem
from jobs.events.stream import Message, Receive, Send

GRACE_SECONDS = 60.0
"""A transfer's average rate is judged after this time."""
Headers = list[tuple[bytes, bytes]]


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
                f"{limits.artifact_transfers} transfers are in progress, the most at once.",
                retry_after_seconds=2.0,
            )
        if self._of_tenant[tenant_id] >= limits.artifact_transfers_per_tenant:
            raise Problem(
                429,
                "too_many_transfers",
                f"{limits.artifact_transfers_per_tenant} transfers of this tenant are in progress, the most "
                "at once.",
                retry_after_seconds=2.0,
            )
        self._of_tenant[tenant_id] += 1
        try:
            yield
        finally:
            self._of_tenant[tenant_id] -= 1
            self._of_tenant += Counter()  # drops tenants without a transfer


class Exchange:
    """One request and its answer. path: without `prefix`. declared: bytes of its body; None: not declared."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, prefix: str) -> None:
        self._receive, self._send = receive, send
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

    async def _next(self) -> bytes:
        try:
            async with asyncio.timeout(settings.DISPATCHER.upload_idle_seconds):
                message = await self._receive()
        except TimeoutError:
            raise _too_slow() from None
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

    async def refuse(self, problem: Problem) -> None:
        """Send the problem, then drop the rest of the body, so that the client reads the answer. An answer
        that has begun is cut: its Content-Length tells the client."""
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
        dropped = 0
        try:
            while self._left and dropped <= settings.DISPATCHER.refused_body_bytes:
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


def _too_slow() -> Problem:
    return Problem(
        408, "upload_too_slow", "The body did not arrive in time.", headers={"Connection": "close"}
    )
