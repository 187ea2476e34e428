"""Sends a signed message once: the receiver's name is resolved in a thread, the addresses are checked, and
one POST goes to a checked one. No second resolution, no redirect, no proxy of the environment.

On an event loop with non-blocking sockets: a receiver that does not answer costs a socket and no thread. Not
with asyncio's streams, whose TLS keeps a quarter of a megabyte for each connection.
"""

from __future__ import annotations

import asyncio
import http.client
import io
import socket
import ssl
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from email.utils import parsedate_to_datetime
from functools import lru_cache, partial
from typing import Any, TypeVar

from django.conf import settings

from jobs.callbacks import guard
from jobs.callbacks.guard import (
    Address,
    RefusedOrigins,
    Target,
    canonical_address,
    filter_allowed,
    literal_addresses,
    read_url,
)
from jobs.callbacks.message import sign
from jobs.domain.errors import CallbackUrlRefused

KEEP_SECONDS = 10.0
"""How long resolved addresses of our own servers are kept."""
_MAX_KEPT = 10_000
_OURS = 0
"""In place of a tenant's id: look-ups of our own servers."""
_Name = tuple[int, str, int]
CONNECT_SECONDS = 5.0
"""Time-out per address, so that a dead one leaves time for the next."""
MAX_HEAD_BYTES = 64 * 1024
MAX_ANSWER_BYTES = 64 * 1024
DRAIN_SECONDS = 1.0
"""Time-out for the answer's body; the answer's head decides the outcome."""
_CHUNK_BYTES = 64 * 1024
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Message:
    """A message to send. id: the `webhook-id`. secrets: that sign it. refused: origins that it may not
    reach."""

    id: str
    tenant_id: int
    url: str
    body: str
    secrets: list[str]
    refused: RefusedOrigins


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a try. answer: None if none came. error: empty if the receiver answered 2xx.
    duration_ms: of the whole try."""

    answer: Answer | None
    error: str
    duration_ms: int

    @property
    def status(self) -> int | None:
        return self.answer.status if self.answer else None


async def send(message: Message, resolver: Resolver, *, now: datetime) -> Outcome:
    """Sign and send; ends within DISPATCHER_CALLBACK_TIMEOUT_SECONDS. Never raises."""
    began = time.monotonic()
    seconds = settings.DISPATCHER.callback_timeout_seconds
    answer, error = None, ""
    try:
        async with asyncio.timeout(seconds) as limit:
            answer = await _post(message, resolver, now, limit)
        error = "" if 200 <= answer.status < 300 else f"HTTP {answer.status}"
    except TimeoutError as failure:
        error = f"TimeoutError: no answer in {seconds:g} s" if limit.expired() else failure_text(failure)
    except Exception as failure:  # the message stays on its schedule, and the delivery log names the error
        error = failure_text(failure)
    return Outcome(answer, error, int((time.monotonic() - began) * 1000))


def send_now(message: Message, *, now: datetime) -> Outcome:
    """`send` for a caller without an event loop; must not be called inside a transaction."""

    async def alone() -> Outcome:
        return await send(message, Resolver(), now=now)

    return asyncio.run(alone())


async def _post(message: Message, resolver: Resolver, now: datetime, limit: asyncio.Timeout) -> Answer:
    target = read_url(message.url)
    addresses = await resolver.allowed_addresses(target, message.refused, tenant_id=message.tenant_id)
    if not addresses:
        raise CallbackUrlRefused
    headers = sign(message.secrets, message.id, now, message.body)
    headers |= {"Content-Type": "application/json", "User-Agent": "gpu-dispatcher", "Connection": "close"}
    return await post(target, addresses, body=message.body.encode(), headers=headers, limit=limit)


def failure_text(failure: Exception) -> str:
    """Return the error's text for the delivery log, without control characters that a receiver may have
    sent."""
    text = f"{type(failure).__name__}: {failure}"[:500]
    return "".join(one if one.isprintable() else "\N{REPLACEMENT CHARACTER}" for one in text)


@dataclass(slots=True, eq=False)
class _LookUp:
    """A name that is being resolved. waiting: number of tries that await the answer."""

    name: _Name
    answer: asyncio.Future[list[Address]]
    waiting: int = 0


class Resolver:
    """Resolves receivers' names for one event loop; for use in its thread only.

    The system's resolver blocks without a time-out. So each look-up has a thread; their number is bounded,
    and tenants share them fairly.
    """

    def __init__(self) -> None:
        self._pending: dict[_Name, _LookUp] = {}
        self._waiting: dict[int, deque[_LookUp]] = {}
        self._running: Counter[int] = Counter()
        self._kept: dict[tuple[str, int], tuple[float, list[Address]]] = {}

    async def allowed_addresses(
        self, target: Target, refused: RefusedOrigins, *, tenant_id: int
    ) -> list[Address]:
        """Return the addresses of the target's host that may be connected to, best first; none if all are
        refused.

        Raises OSError (`socket.gaierror`, `TimeoutError`) if the name can't be resolved.
        """
        if refused.has_name(target.host, target.port):
            return []
        found = literal_addresses(target.host, target.port)
        if found is None:
            found = await self._look_up((tenant_id, target.host, target.port))
        found = filter_allowed(found, target, refused)
        if found and not (target.scheme == "https" and all(one.is_global for one in found)):
            # a public server with a certificate for the name is the tenant's, so it needs no check
            theirs = await self._addresses_of(refused.names_with_port(target.port), target.port)
            found = [one for one in found if canonical_address(one) not in theirs]
        return found

    async def _addresses_of(self, names: Iterable[str], port: int) -> set[Address]:
        """Return the addresses of GPU servers and our own services. Their look-ups share threads like a
        tenant's, and are cached for `KEEP_SECONDS`. Raises TimeoutError: without all of them the message
        waits for its next try."""
        known = await asyncio.gather(*(self._address_of(name, port) for name in names))
        return {canonical_address(address) for found in known for address in found}

    async def _address_of(self, name: str, port: int) -> list[Address]:
        now = asyncio.get_running_loop().time()
        kept = self._kept.get((name, port))
        if kept is not None and kept[0] > now:
            return kept[1]
        try:
            found = await self._look_up((_OURS, name, port))
        except TimeoutError:
            raise
        except OSError:  # the name does not exist now
            found = []
        if len(self._kept) >= _MAX_KEPT:
            self._kept = {}
        self._kept[name, port] = (now + KEEP_SECONDS, found)
        return found

    async def _look_up(self, name: _Name) -> list[Address]:
        look_up = self._pending.get(name)
        if look_up is None:
            look_up = self._pending[name] = _LookUp(name, asyncio.get_running_loop().create_future())
            self._waiting.setdefault(name[0], deque()).append(look_up)
            self._start()
        seconds = settings.DISPATCHER.callback_lookup_seconds
        look_up.waiting += 1
        try:
            async with asyncio.timeout(seconds):
                return await asyncio.shield(look_up.answer)
        except TimeoutError:
            self._give_up(look_up)
            raise TimeoutError(f"the name {name[1]} was not resolved in {seconds:g} s") from None
        finally:
            look_up.waiting -= 1

    def _start(self) -> None:
        """Start threads, for the tenant with the fewest first; a tenant gets at most as many as are left for
        others."""
        limit = settings.DISPATCHER.callback_lookups
        while self._waiting and (free := limit - self._running.total()) > 0:
            tenant = min(self._waiting, key=lambda waiting: self._running[waiting])
            if self._running[tenant] >= max(free, 1):
                return
            look_ups = self._waiting[tenant]
            look_up = look_ups.popleft()
            if not look_ups:
                del self._waiting[tenant]
            self._running[tenant] += 1
            loop = asyncio.get_running_loop()
            threading.Thread(
                target=self._ask, args=(loop, look_up), name="callback-lookup", daemon=True
            ).start()

    def _ask(self, loop: asyncio.AbstractEventLoop, look_up: _LookUp) -> None:
        answer: list[Address] | Exception
        try:
            answer = guard.resolve(look_up.name[1], look_up.name[2])
        except Exception as error:
            answer = error
        with suppress(RuntimeError):  # the loop was closed meanwhile
            loop.call_soon_threadsafe(self._answered, look_up, answer)

    def _answered(self, look_up: _LookUp, answer: list[Address] | Exception) -> None:
        tenant = look_up.name[0]
        self._running[tenant] -= 1
        if not self._running[tenant]:
            del self._running[tenant]
        self._forget(look_up)
        if isinstance(answer, Exception):
            look_up.answer.set_exception(answer)
            look_up.answer.exception()  # marks it as retrieved: all tries may have given up
        else:
            look_up.answer.set_result(answer)
        self._start()

    def _give_up(self, look_up: _LookUp) -> None:
        """Let later tries start a new look-up; tries that wait already share this one. If no other try waits
        and it has no thread yet, drop it."""
        self._forget(look_up)
        tenant = look_up.name[0]
        look_ups = self._waiting.get(tenant)
        if look_up.waiting == 1 and look_ups is not None and look_up in look_ups:
            look_ups.remove(look_up)
            if not look_ups:
                del self._waiting[tenant]

    def _forget(self, look_up: _LookUp) -> None:
        if self._pending.get(look_up.name) is look_up:
            del self._pending[look_up.name]


@dataclass(frozen=True, slots=True)
class Answer:
    """The receiver's answer. retry_after: its header, raw."""

    status: int
    retry_after: str | None

    def retry_after_seconds(self, now: datetime) -> float | None:
        """Return the seconds of `Retry-After`, seconds or an HTTP date (RFC 9110 §10.2.3); 0 for a past date,
        None if it is absent or invalid."""
        text = (self.retry_after or "").strip()
        if text.isascii() and text.isdigit():
            return float(text[:9])
        try:
            return max((parsedate_to_datetime(text) - now).total_seconds(), 0.0)
        except (TypeError, ValueError, OverflowError):
            # no date, one without a zone, or one out of range
            return None


async def post(
    target: Target,
    addresses: list[Address],
    *,
    body: bytes,
    headers: Mapping[str, str],
    limit: asyncio.Timeout,
) -> Answer:
    """Send one POST to the first address that accepts a connection.

    limit: time-out around this call; lifted once the answer's head is read.
    Raises OSError or http.client.HTTPException.
    """
    sock = await _connect(target, addresses)
    try:
        wire = _Connection(sock)
        if isinstance(sock, ssl.SSLSocket):
            await wire.run(sock.do_handshake)
        await wire.send(_head(target, headers, len(body)))
        await wire.send(body)
        response = await _response(wire)
        limit.reschedule(None)  # the answer's head counts, also without a readable body
        with suppress(OSError):
            async with asyncio.timeout(DRAIN_SECONDS):
                await _drain(wire, response.length)
        return Answer(response.status, response.headers.get("Retry-After"))
    finally:
        sock.close()


class _Connection:
    """A non-blocking socket on this event loop, with or without TLS."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._loop = asyncio.get_running_loop()
        self.buffer = bytearray()

    async def run(self, step: Callable[[], _T], *, writes: bool = False) -> _T:
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
            view = view[await self.run(partial(self._sock.send, chunk), writes=True) :]

    async def receive(self) -> bool:
        """Add what arrives to the buffer; False at the end."""
        try:
            chunk = await self.run(partial(self._sock.recv, _CHUNK_BYTES))
        except ssl.SSLEOFError:  # many servers close TLS without a closing alert
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
    """The part of a socket's interface that http.client needs to read an answer's head."""

    def __init__(self, head: bytes) -> None:
        self._head = head

    def makefile(self, mode: str) -> io.BytesIO:
        return io.BytesIO(self._head)


async def _connect(target: Target, addresses: list[Address]) -> socket.socket:
    failure: OSError = OSError("no address to connect to")
    for address in addresses:
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                sock = await _open_socket(address, target.port)
        except OSError as error:
            late = TimeoutError(f"no connection to {address} in {CONNECT_SECONDS:g} s")
            failure = error if str(error) else late
            continue
        if target.scheme == "http":
            return sock
        try:
            # the certificate is verified for the name
            return _tls().wrap_socket(sock, server_hostname=target.host, do_handshake_on_connect=False)
        except BaseException:
            sock.close()
            raise
    raise failure


async def _open_socket(address: Address, port: int) -> socket.socket:
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


async def _response(wire: _Connection) -> http.client.HTTPResponse:
    """Read the head of the first answer that is not an interim one (1xx)."""
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


async def _read_head(wire: _Connection, most: int) -> bytes:
    """Return all lines up to the empty one; fewer if the receiver closes before, or does not speak HTTP."""
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


def _cut(wire: _Connection, length: int) -> bytes:
    head = bytes(wire.buffer[:length])
    del wire.buffer[:length]
    return head


async def _drain(wire: _Connection, length: Any) -> None:
    """Read the answer's body up to a limit, so that the receiver can finish it."""
    left = MAX_ANSWER_BYTES if length is None else min(length, MAX_ANSWER_BYTES)
    while len(wire.buffer) < left and await wire.receive():
        pass


@lru_cache(maxsize=1)
def _tls() -> ssl.SSLContext:
    return ssl.create_default_context()
