"""One signed message, sent once: its name is looked up beside the event loop, the addresses are checked, and
one POST goes to a checked one. No second look-up, no redirect, no proxy of the environment.

On an event loop and by non-blocking sockets: a receiver that does not answer costs a socket, and no thread.
Not by asyncio's own streams, whose TLS keeps a quarter of a megabyte for each connection.
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
from jobs.callbacks.guard import Address, Origins, Target, allowed, literal_addresses, one_of, read_url
from jobs.callbacks.message import sign
from jobs.domain.errors import CallbackUrlRefused

KEEP_SECONDS = 10.0
"""How long resolved addresses of our own servers are kept."""
_MOST_KEPT = 10_000
_OURS = 0
"""No tenant's id."""
_Name = tuple[int, str, int]
CONNECT_SECONDS = 5.0
"""For one address, so that a dead one leaves time for the next."""
MAX_HEAD_BYTES = 64 * 1024
MAX_ANSWER_BYTES = 64 * 1024
DRAIN_SECONDS = 1.0
"""For what follows the answer's head, which counts already."""
_CHUNK_BYTES = 64 * 1024
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Message:
    """body: as stored. secrets: those that sign it. refused: where it may not go."""

    id: str
    tenant_id: int
    url: str
    body: str
    secrets: list[str]
    refused: Origins


@dataclass(frozen=True, slots=True)
class Outcome:
    """answer: None if there was none. error: empty when the receiver answered 2xx. duration_ms: all of it."""

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
    except Exception as failure:  # whatever it was, the message stays on its schedule and the log says why
        error = failure_text(failure)
    return Outcome(answer, error, int((time.monotonic() - began) * 1000))


def send_now(message: Message, *, now: datetime) -> Outcome:
    """`send` for a caller without an event loop. Never inside a transaction."""

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
    """For the delivery log: a receiver's bytes may stand in it, and PostgreSQL takes no NUL."""
    text = f"{type(failure).__name__}: {failure}"[:500]
    return "".join(one if one.isprintable() else "\N{REPLACEMENT CHARACTER}" for one in text)


@dataclass(slots=True, eq=False)
class _LookUp:
    """waiting: how many tries want its answer."""

    name: _Name
    answer: asyncio.Future[list[Address]]
    waiting: int = 0


class Resolver:
    """Look-ups of receivers' names, of one event loop, and used in its thread only.

    The system's resolver blocks, knows no time limit and can't be interrupted. So each look-up is a thread,
    their number is bounded, and tenants share them.
    """

    def __init__(self) -> None:
        self._pending: dict[_Name, _LookUp] = {}
        self._waiting: dict[int, deque[_LookUp]] = {}
        self._running: Counter[int] = Counter()
        self._kept: dict[tuple[str, int], tuple[float, list[Address]]] = {}

    async def allowed_addresses(self, target: Target, refused: Origins, *, tenant_id: int) -> list[Address]:
        """The addresses of the target's host that may be connected to, best first; none if all are refused.

        Raises OSError (`socket.gaierror`, `TimeoutError`) when the name can't be resolved.
        """
        if refused.has_name(target.host, target.port):
            return []
        found = literal_addresses(target.host, target.port)
        if found is None:
            found = await self._look_up((tenant_id, target.host, target.port))
        found = allowed(found, target, refused)
        if found and not (target.scheme == "https" and all(one.is_global for one in found)):
            # a public server that has a certificate for the tenant's name is the tenant's
            theirs = await self._addresses_of(refused.names_with_port(target.port), target.port)
            found = [one for one in found if one_of(one) not in theirs]
        return found

    async def _addresses_of(self, names: Iterable[str], port: int) -> set[Address]:
        """Of GPU servers and our own services: looked up as one more tenant's, and kept for a moment. Raises
        TimeoutError: as long as one of them is not known, the message waits for its next try."""
        known = await asyncio.gather(*(self._address_of(name, port) for name in names))
        return {one_of(address) for found in known for address in found}

    async def _address_of(self, name: str, port: int) -> list[Address]:
        now = asyncio.get_running_loop().time()
        kept = self._kept.get((name, port))
        if kept is not None and kept[0] > now:
            return kept[1]
        try:
            found = await self._look_up((_OURS, name, port))
        except TimeoutError:
            raise
        except OSError:  # there is no such name now
            found = []
        if len(self._kept) >= _MOST_KEPT:
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
        """The tenant with the fewest threads first; a tenant gets no more than are left for others."""
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
            look_up.answer.exception()  # those who asked may all have given up
        else:
            look_up.answer.set_result(answer)
        self._start()

    def _give_up(self, look_up: _LookUp) -> None:
        """A later try asks anew; those that wait already get this answer. One that still waits for a thread,
        and that nobody else wants, needs none any more."""
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
                sock = await _open_socket(address, target.port)
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
