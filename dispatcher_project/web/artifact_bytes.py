"""ASGI application for the bytes of artifacts in a local folder: signed PUT, GET and HEAD requests.

No thread of Django is used, and no database: the URL's signature is the permission. Files are read and
written in threads of its own, a piece at a time, so that neither the event loop nor submits wait for a disk.
The body of an upload reaches the store's folder under a temporary name, and its place only whole, checked and
synced.
"""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

from django.conf import settings

from artifacts.keys import ObjectKey, read_key
from artifacts.store.configured import STORE_PATH
from artifacts.store.contract import CHUNK_BYTES, StoreError, StoreUnavailable
from artifacts.store.local import LocalStore, Receiver
from artifacts.store.names import attachment
from artifacts.store.signatures import BadSignature, Expired, Grant, read_grant
from dispatcher_project.web.request_limits import Scope, send_problem
from foundation.http_api.problems import Problem
from jobs.api.errors import store_problem
from jobs.events.stream import Message, Receive, Send

PREFIX = f"{STORE_PATH}/"
SERVING_THREADS = 8
"""Threads that read and write files. A piece takes about a millisecond, so they serve all transfers."""
SANDBOX = "sandbox; default-src 'none'"
GRACE_SECONDS = 60.0
"""A transfer's average rate is judged after this time."""
_RANGE = re.compile(r"bytes=([0-9]*)-([0-9]*)\Z", re.IGNORECASE)
_MOST = 10**18
"""In place of larger numbers: no object has so many bytes."""
Result = TypeVar("Result")
Headers = list[tuple[bytes, bytes]]


class ArtifactBytes:
    """Serves a local store. store: returns it; None if the store is not a folder, and all is 404."""

    def __init__(self, store: Callable[[], LocalStore | None]) -> None:
        self._store = store
        self._threads = ThreadPoolExecutor(SERVING_THREADS, thread_name_prefix="artifact-bytes")
        self._of_tenant: Counter[int] = Counter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = _Exchange(scope, receive, send)
        try:
            await self._serve(exchange)
        except Problem as problem:
            await exchange.refuse(problem)
        except StoreError as error:
            await exchange.refuse(store_problem(error))
        except _ClientGone:
            pass

    async def _serve(self, exchange: _Exchange) -> None:
        store = self._store()
        key = read_key(exchange.path)
        if store is None or key is None:
            raise Problem(404, "unknown_route", "There is no such object.")
        if exchange.method not in ("GET", "HEAD", "PUT"):
            raise Problem(
                405, "method_not_allowed", "Only GET, HEAD and PUT.", headers={"Allow": "GET, HEAD, PUT"}
            )
        grant = await self._in_thread(lambda: _grant(exchange, key, store))
        with self._transfer(key):
            if exchange.method == "PUT":
                await self._put(exchange, grant, store)
            else:
                await self._get(exchange, grant, store)

    async def _put(self, exchange: _Exchange, grant: Grant, store: LocalStore) -> None:
        if exchange.declared != grant.size:
            raise Problem(
                400,
                "artifact_bytes_wrong",
                f"The Content-Length must be {grant.size}, as declared; "
                + ("it is missing." if exchange.declared is None else f"it is {exchange.declared}."),
            )
        receiver = await self._in_thread(lambda: _receiver(grant, store))
        try:
            async for data in exchange.body():
                await self._in_thread(lambda data=data: _add(receiver, data))  # type: ignore[misc]
            await self._in_thread(receiver.finish)
        finally:
            await self._in_thread(lambda: receiver.__exit__(None, None, None))
        tag = f'"{grant.key.sha256}"' if not grant.upload else f'"{grant.number}"'
        await exchange.answer(200, [(b"etag", tag.encode()), (b"content-length", b"0")])

    async def _get(self, exchange: _Exchange, grant: Grant, store: LocalStore) -> None:
        descriptor, size = await self._in_thread(lambda: store.open(grant.key))
        try:
            tag = f'"{grant.key.sha256}"'
            headers: Headers = [
                (b"etag", tag.encode()),
                (b"accept-ranges", b"bytes"),
                (b"cache-control", b"private, max-age=3600, immutable"),
                (b"content-disposition", attachment(grant.name).encode()),
                (b"content-security-policy", SANDBOX.encode()),
                (b"x-content-type-options", b"nosniff"),
                (b"cross-origin-resource-policy", b"cross-origin"),
            ]
            if exchange.header("if-none-match") in (tag, "*"):
                await exchange.answer(304, headers)
                return
            wanted = _range(exchange, size, tag)
            first, behind = wanted or (0, size)
            headers += [
                (b"content-type", (grant.content_type or "application/octet-stream").encode("latin1")),
                (b"content-length", str(behind - first).encode()),
            ]
            if wanted:
                headers.append((b"content-range", f"bytes {first}-{behind - 1}/{size}".encode()))
            await exchange.answer(
                206 if wanted else 200, headers, self._pieces(exchange, descriptor, first, behind)
            )
        finally:
            os.close(descriptor)

    async def _pieces(self, exchange: _Exchange, descriptor: int, first: int, behind: int) -> Any:
        began = time.monotonic()
        at = first
        while at < behind and exchange.method != "HEAD":
            length = min(CHUNK_BYTES, behind - at)
            data = await self._in_thread(lambda at=at, length=length: os.pread(descriptor, length, at))  # type: ignore[misc]
            if not data:
                raise StoreUnavailable("The object became shorter.")
            at += len(data)
            yield data
            if is_too_slow(at - first, began):
                raise _ClientGone

    @contextmanager
    def _transfer(self, key: ObjectKey) -> Iterator[None]:
        """Count a transfer. Raises Problem 503 or 429 at the limits."""
        limits = settings.DISPATCHER
        if self._of_tenant.total() >= limits.artifact_transfers:
            raise Problem(
                503,
                "too_many_transfers",
                f"{limits.artifact_transfers} transfers are in progress, the most at once.",
                retry_after_seconds=2.0,
            )
        if self._of_tenant[key.tenant_id] >= limits.artifact_transfers_per_tenant:
            raise Problem(
                429,
                "too_many_transfers",
                f"{limits.artifact_transfers_per_tenant} transfers of this tenant are in progress, the most "
                "at once.",
                retry_after_seconds=2.0,
            )
        self._of_tenant[key.tenant_id] += 1
        try:
            yield
        finally:
            self._of_tenant[key.tenant_id] -= 1
            self._of_tenant += Counter()  # drops tenants without a transfer

    async def _in_thread(self, work: Callable[[], Result]) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)


class _ClientGone(Exception):
    """The connection is closed, or will be, without a further answer."""


class _Exchange:
    """One request and its answer."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._receive, self._send = receive, send
        self.method = str(scope["method"])
        self.path = str(scope["path"]).removeprefix(PREFIX)
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
            raise _ClientGone
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
        except (Problem, _ClientGone):
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


def _grant(exchange: _Exchange, key: ObjectKey, store: LocalStore) -> Grant:
    try:
        return read_grant(exchange.method, key, exchange.query, store.now())
    except BadSignature:
        raise Problem(
            403, "bad_signature", "The URL was changed, or is for another method. Ask for a new one."
        ) from None
    except Expired:
        raise Problem(403, "url_expired", "The URL has expired. Ask for a new one.") from None


def _receiver(grant: Grant, store: LocalStore) -> Receiver:
    if grant.upload:
        return store.receive_part(grant.key, grant.upload, grant.number, grant.size)
    return store.receive(grant.key, grant.size)


def _add(receiver: Receiver, data: bytes) -> None:
    receiver.add(data)


def _range(exchange: _Exchange, size: int, tag: str) -> tuple[int, int] | None:
    """Return the first position and the one behind the last of the wanted bytes; None: all are wanted. A
    header that is malformed, has several ranges or ends before it begins is ignored (RFC 9110 §14.2). Raises
    Problem 416."""
    found = _RANGE.match(exchange.header("range").strip())
    if found is None or not (found[1] or found[2]) or exchange.header("if-range") not in ("", tag):
        return None
    last = _number(found[2])
    if not found[1]:
        first, behind = max(0, size - last), size
    else:
        first = _number(found[1])
        if found[2] and last < first:
            return None
        behind = min(size, last + 1) if found[2] else size
    if first >= behind:
        raise Problem(
            416,
            "range_not_satisfiable",
            f"The object has {size} bytes.",
            headers={"Content-Range": f"bytes */{size}"},
        )
    return first, behind


def _number(digits: str) -> int:
    """Return a position; Python converts no text of thousands of digits."""
    return _MOST if len(digits.lstrip("0")) > 18 else int(digits or 0)
