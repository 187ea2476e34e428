"""One POST to an address that was checked: no second look-up, no redirect, no proxy of the environment.

On an event loop and by non-blocking sockets: a receiver that does not answer costs a socket, and no thread.
Not by asyncio's own streams, whose TLS keeps a quarter of a megabyte for each connection.
"""

from __future__ import annotations

import asyncio
import http.client
import io
import socket
import ssl
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from email.utils import parsedate_to_datetime
from functools import lru_cache, partial
from typing import Any, TypeVar

from .guard import Address, Target

CONNECT_SECONDS = 5.0
"""For one address, so that a dead one leaves time for the next."""
MAX_HEAD_BYTES = 64 * 1024
MAX_ANSWER_BYTES = 64 * 1024
DRAIN_SECONDS = 1.0
"""For what follows the answer's head, which counts already."""
_CHUNK_BYTES = 64 * 1024
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Answer:
    """What the receiver said. retry_after: its header, raw."""

    status: int
    retry_after: str | None

    def retry_after_seconds(self, now: datetime) -> float | None:
        """Seconds or an HTTP date, as RFC 9110 §10.2.3 allows; None if absent, past or nonsense."""
        text = (self.retry_after or "").strip()
        if text.isascii() and text.isdigit():
            return float(text[:9])
        try:
            return max((parsedate_to_datetime(text) - now).total_seconds(), 0.0)
        except (TypeError, ValueError, OverflowError):
            # no date, one without a zone, or one of a year that no host knows
            return None


async def post(
    target: Target,
    addresses: list[Address],
    *,
    body: bytes,
    headers: Mapping[str, str],
    limit: asyncio.Timeout,
) -> Answer:
    """Send once. limit: around this call; ends with the answer's head. Raises OSError or
    http.client.HTTPException."""
    sock = await _connect(target, addresses)
    try:
        wire = _Wire(sock)
        if isinstance(sock, ssl.SSLSocket):
            await wire.run(sock.do_handshake)
        await wire.send(_head(target, headers, len(body)))
        await wire.send(body)
        response = await _response(wire)
        limit.reschedule(None)  # the answer counts, however its end comes
        with suppress(OSError):
            async with asyncio.timeout(DRAIN_SECONDS):
                await _drain(wire, response.length)
        return Answer(response.status, response.headers.get("Retry-After"))
    finally:
        sock.close()


class _Wire:
    """A non-blocking socket, with or without TLS, as this event loop waits for it."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._loop = asyncio.get_running_loop()
        self.buffer = bytearray()

    async def run(self, step: Callable[[], _T], *, writes: bool = False) -> _T:
        """Repeat `step` until the socket is ready for it. writes: what a plain socket waits for."""
        while True:
            try:
                return step()
            except ssl.SSLWantReadError:
                writes = False
            except ssl.SSLWantWriteError:
                writes = True
            except BlockingIOError:
                pass
            await self._ready(writes=writes)

    async def send(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            chunk = view[:_CHUNK_BYTES]  # after a wait, TLS wants the same bytes again
            view = view[await self.run(partial(self._sock.send, chunk), writes=True) :]

    async def receive(self) -> bool:
        """Add what arrives to the buffer; False at the end."""
        try:
            chunk = await self.run(partial(self._sock.recv, _CHUNK_BYTES))
        except ssl.SSLEOFError:  # many servers end TLS without saying so
            return False
        self.buffer += chunk
        return bool(chunk)

    async def _ready(self, *, writes: bool) -> None:
        add, remove = (
            (self._loop.add_writer, self._loop.remove_writer)
            if writes
            else (self._loop.add_reader, self._loop.remove_reader)
        )
        ready = self._loop.create_future()
        add(self._sock.fileno(), _set, ready)
        try:
            await ready
        finally:
            remove(self._sock.fileno())


def _set(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)


class _Head:
    """As much of a socket as http.client reads an answer's head from."""

    def __init__(self, head: bytes) -> None:
        self._head = head

    def makefile(self, mode: str) -> io.BytesIO:
        return io.BytesIO(self._head)


async def _connect(target: Target, addresses: list[Address]) -> socket.socket:
    failure: OSError = OSError("no address to connect to")
    for address in addresses:
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                sock = await _open(address, target.port)
        except OSError as error:
            late = TimeoutError(f"no connection to {address} in {CONNECT_SECONDS:g} s")
            failure = error if str(error) else late
            continue
        if target.scheme == "http":
            return sock
        try:
            # the name is what is verified
            return _tls().wrap_socket(sock, server_hostname=target.host, do_handshake_on_connect=False)
        except BaseException:
            sock.close()
            raise
    raise failure


async def _open(address: Address, port: int) -> socket.socket:
    sock = socket.socket(socket.AF_INET if address.version == 4 else socket.AF_INET6, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, (str(address), port))
    except BaseException:
        sock.close()
        raise
    return sock


def _head(target: Target, headers: Mapping[str, str], length: int) -> bytes:
    lines = [f"POST {target.path} HTTP/1.1", f"Host: {target.authority}", "Accept-Encoding: identity"]
    lines += [f"Content-Length: {length}", *(f"{name}: {value}" for name, value in headers.items())]
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


async def _response(wire: _Wire) -> http.client.HTTPResponse:
    """The first answer that is not an interim one, its body unread."""
    left = MAX_HEAD_BYTES
    while True:
        head = await _read_head(wire, left)
        left -= len(head)
        response = http.client.HTTPResponse(_Head(head), method="POST")  # type: ignore[arg-type]
        if not _is_interim(head):
            response.begin()
            return response


def _is_interim(head: bytes) -> bool:
    words = head.split(None, 2)
    return len(words) > 1 and len(words[1]) == 3 and words[1].startswith(b"1") and words[1] != b"101"


async def _read_head(wire: _Wire, most: int) -> bytes:
    """All lines up to the empty one; less when the receiver hangs up before, or does not talk HTTP."""
    start = 0
    while True:
        end = wire.buffer.find(b"\n", start)
        if max(start, end, len(wire.buffer) if end < 0 else 0) > most:
            raise http.client.LineTooLong("answer's head")
        if end < 0:
            if not await wire.receive():
                return _cut(wire, len(wire.buffer))
            continue
        if not wire.buffer[start : end + 1].strip(b"\r\n") or not wire.buffer.startswith(b"HTTP/"):
            return _cut(wire, end + 1)
        start = end + 1


def _cut(wire: _Wire, length: int) -> bytes:
    head = bytes(wire.buffer[:length])
    del wire.buffer[:length]
    return head


async def _drain(wire: _Wire, length: Any) -> None:
    """Let a polite receiver finish its answer, up to a limit."""
    left = MAX_ANSWER_BYTES if length is None else min(length, MAX_ANSWER_BYTES)
    while len(wire.buffer) < left and await wire.receive():
        pass


@lru_cache(maxsize=1)
def _tls() -> ssl.SSLContext:
    return ssl.create_default_context()
