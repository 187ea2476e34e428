"""A small HTTP/1.1 client on an event loop, which connects to addresses that its caller has checked: no
second resolution, no redirect, no proxy of the environment.

With non-blocking sockets: a server that does not answer costs a socket and no thread. Not with asyncio's
streams, whose TLS keeps a quarter of a megabyte for each connection.
"""

from __future__ import annotations

import asyncio
import http.client
import io
import re
import socket
import ssl
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import TypeVar
from urllib.parse import quote, urlsplit

MAX_URL_LENGTH = 2000
REDIRECTS = frozenset({301, 302, 303, 307, 308})
CONNECT_SECONDS = 5.0
"""Time-out per address, so that a dead one leaves time for the next."""
MAX_HEAD_BYTES = 64 * 1024
_MAX_CHUNK_LINE = 256
_MAX_TRAILER_BYTES = 16 * 1024
_CHUNK_BYTES = 64 * 1024
_PORTS = {"http": 80, "https": 443}
_VISIBLE = "".join(map(chr, range(0x21, 0x7F)))
_UNSAFE = re.compile(r"[\x00-\x20\x7f\\]")
_SIZE = re.compile(rb"[0-9A-Fa-f]{1,15}\Z")
Address = IPv4Address | IPv6Address
_CODING_CHARS = 40
_NOT_SHOWN = re.compile(r"[^ -~]")
_T = TypeVar("_T")


def refused_coding(content_encoding: str | None, transfer_encoding: str | None = None) -> str:
    """Return the header, for an error's text, by which a body can't be read as it is sent: it is compressed,
    or its transfer coding is not `chunked` alone. "": it can be read. None: the answer lacks the header."""
    for name, value, readable in (
        ("Transfer-Encoding", transfer_encoding, ("", "chunked", "identity")),
        ("Content-Encoding", content_encoding, ("", "identity")),
    ):
        coding = (value or "").strip().lower()
        if coding not in readable:
            return f"{name}: {_NOT_SHOWN.sub('?', coding[:_CODING_CHARS])}"
    return ""


class BadUrl(ValueError):
    """The URL is not one that can be requested. The text goes on after its name: "is too long"."""


@dataclass(frozen=True, slots=True)
class Target:
    """A parsed URL. host: in ASCII (IDNA), without brackets. path: with its query."""

    scheme: str
    host: str
    port: int
    path: str

    @property
    def authority(self) -> str:
        """The value of the Host header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS[self.scheme] else f"{host}:{self.port}"


def read_url(url: str) -> Target:
    """Parse a URL with http or https. Raises BadUrl if its form is not allowed."""
    if len(url) > MAX_URL_LENGTH:
        raise BadUrl(f"is longer than {MAX_URL_LENGTH} characters")
    if _UNSAFE.search(url):  # parsers disagree about these, which gets a URL past a check
        raise BadUrl("holds a space, control character or backslash")
    try:
        parts = urlsplit(url)
        port = parts.port
        host = _ascii_host(parts.hostname or "")
    except ValueError:
        raise BadUrl("is not a valid URL") from None
    if parts.scheme not in _PORTS:
        raise BadUrl("must begin with http:// or https://")
    if not host or port == 0:
        raise BadUrl("names no host")
    if parts.username is not None or parts.password is not None:
        raise BadUrl("must not hold credentials")
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return Target(parts.scheme, host, port or _PORTS[parts.scheme], _ascii_path(path))


def _ascii_host(host: str) -> str:
    """Return the host in IDNA, so that the checked name is the resolved one. Raises ValueError if it has no
    such form."""
    if ":" in host:
        return str(ip_address(host))
    return host.encode("idna").decode("ascii")


def _ascii_path(path: str) -> str:
    return quote(path, safe=_VISIBLE, errors="replace")


class Connection:
    """A non-blocking socket on this event loop, with or without TLS."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._loop = asyncio.get_running_loop()
        self.buffer = bytearray()

    async def handshake(self) -> None:
        """Make the handshake of TLS; nothing without it."""
        if isinstance(self._sock, ssl.SSLSocket):
            await self._run(self._sock.do_handshake)

    async def _run(self, step: Callable[[], _T], *, writes: bool = False) -> _T:
        """Repeat `step` until the socket is ready for it. writes: a plain socket waits for writing, not
        reading."""
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
            chunk = view[:_CHUNK_BYTES]  # after a wait, TLS needs the same bytes again
            view = view[await self._run(partial(self._sock.send, chunk), writes=True) :]

    async def receive(self) -> bool:
        """Add what arrives to the buffer; False at the end."""
        try:
            chunk = await self._run(partial(self._sock.recv, _CHUNK_BYTES))
        except ssl.SSLEOFError:  # many servers close TLS without a closing alert
            return False
        self.buffer += chunk
        return bool(chunk)

    def take(self, length: int) -> bytes:
        """Remove the first bytes from the buffer and return them."""
        data = bytes(self.buffer[:length])
        del self.buffer[:length]
        return data

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


async def connect(target: Target, addresses: list[Address], tls: ssl.SSLContext) -> socket.socket:
    """Return a socket that is connected to the first of the addresses that accepts it, before its TLS
    handshake. The caller closes it. Raises OSError."""
    failure: OSError = OSError("no address to connect to")
    for address in addresses:
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                sock = await open_socket(address, target.port)
        except OSError as error:
            late = TimeoutError(f"no connection to {address} in {CONNECT_SECONDS:g} s")
            failure = error if str(error) else late
            continue
        if target.scheme == "http":
            return sock
        try:
            # the certificate is verified for the name
            return tls.wrap_socket(sock, server_hostname=target.host, do_handshake_on_connect=False)
        except BaseException:
            sock.close()
            raise
    raise failure


async def open_socket(address: Address, port: int) -> socket.socket:
    """Return a connected socket. Raises OSError."""
    sock = socket.socket(socket.AF_INET if address.version == 4 else socket.AF_INET6, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, (str(address), port))
    except BaseException:
        sock.close()
        raise
    return sock


def head_of(method: str, target: Target, headers: Mapping[str, str]) -> bytes:
    """Return the head of a request. Answers are asked for without compression."""
    lines = [f"{method} {target.path} HTTP/1.1", f"Host: {target.authority}", "Accept-Encoding: identity"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


async def read_response(wire: Connection, method: str) -> http.client.HTTPResponse:
    """Read the head of the first answer that is not an interim one (1xx). Raises OSError and
    http.client.HTTPException, also for a head of more than `MAX_HEAD_BYTES`."""
    left = MAX_HEAD_BYTES
    while True:
        head = await _read_head(wire, left)
        left -= len(head)
        response = http.client.HTTPResponse(_Head(head), method=method)  # type: ignore[arg-type]
        if not _is_interim(head):
            response.begin()
            return response


class _Head:
    """The part of a socket's interface that http.client needs to read an answer's head."""

    def __init__(self, head: bytes) -> None:
        self._head = head

    def makefile(self, mode: str) -> io.BytesIO:
        return io.BytesIO(self._head)


def _is_interim(head: bytes) -> bool:
    words = head.split(None, 2)
    return len(words) > 1 and len(words[1]) == 3 and words[1].startswith(b"1") and words[1] != b"101"


async def _read_head(wire: Connection, most: int) -> bytes:
    """Return all lines up to the empty one; fewer if the server closes before, or does not speak HTTP."""
    start = 0
    while True:
        end = wire.buffer.find(b"\n", start)
        if max(start, end, len(wire.buffer) if end < 0 else 0) > most:
            raise http.client.LineTooLong("answer's head")
        if end < 0:
            if not await wire.receive():
                return wire.take(len(wire.buffer))
            continue
        if not wire.buffer[start : end + 1].strip(b"\r\n") or not wire.buffer.startswith(b"HTTP/"):
            return wire.take(end + 1)
        start = end + 1


async def body_of(wire: Connection, response: http.client.HTTPResponse) -> AsyncGenerator[bytes, None]:
    """Yield the body of an answer in pieces: chunked, of its declared length, or up to the end of the
    connection. Raises OSError, and http.client.HTTPException for a body that is cut or malformed."""
    if response.chunked:
        async for data in _chunks(wire):
            yield data
        return
    if response.length is None:
        while wire.buffer or await wire.receive():
            yield wire.take(len(wire.buffer))
        return
    async for data in _exactly(wire, response.length):
        yield data


async def _exactly(wire: Connection, length: int) -> AsyncGenerator[bytes, None]:
    while length:
        if not wire.buffer and not await wire.receive():
            raise http.client.IncompleteRead(b"", length)
        data = wire.take(min(length, len(wire.buffer)))
        length -= len(data)
        yield data


async def _chunks(wire: Connection) -> AsyncGenerator[bytes, None]:
    """RFC 9112 §7.1. Extensions and trailers are read and dropped."""
    while size := await _chunk_size(wire):
        async for data in _exactly(wire, size):
            yield data
        if (await _line(wire, _MAX_CHUNK_LINE)).strip():
            raise http.client.HTTPException("a chunk is longer than its size")
    left = _MAX_TRAILER_BYTES
    while (line := await _line(wire, left)).strip():
        left -= len(line)


async def _chunk_size(wire: Connection) -> int:
    size = (await _line(wire, _MAX_CHUNK_LINE)).partition(b";")[0].strip()
    if not _SIZE.match(size):
        raise http.client.HTTPException("the size of a chunk is malformed")
    return int(size, 16)


async def _line(wire: Connection, most: int) -> bytes:
    while (end := wire.buffer.find(b"\n")) < 0:
        if len(wire.buffer) > most:
            raise http.client.LineTooLong("answer's body")
        if not await wire.receive():
            raise http.client.IncompleteRead(b"", 1)
    if end > most:
        raise http.client.LineTooLong("answer's body")
    return wire.take(end + 1)
