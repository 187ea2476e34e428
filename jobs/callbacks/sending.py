"""Sends a signed message once: the receiver's name is resolved in a thread, the addresses are checked, and
one POST goes to a checked one (`foundation.http_client`).
"""

from __future__ import annotations

import asyncio
import ssl
import threading
import time
from collections import Counter, deque
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from email.utils import parsedate_to_datetime
from functools import lru_cache

from django.conf import settings

from foundation.fetch import AllowedAddresses
from foundation.http_client import Connection, connect, head_of, read_response
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
MAX_ANSWER_BYTES = 64 * 1024
DRAIN_SECONDS = 1.0
"""Time-out for the answer's body; the answer's head decides the outcome."""


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
        self,
        target: Target,
        refused: RefusedOrigins,
        *,
        tenant_id: int,
        networks: tuple[str, ...] | None = None,
    ) -> list[Address]:
        """Return the addresses of the target's host that may be connected to, best first; none if all are
        refused. networks: private ones that are allowed; None: those of callbacks.

        Raises OSError (`socket.gaierror`, `TimeoutError`) if the name can't be resolved.
        """
        if refused.has_name(target.host, target.port):
            return []
        found = literal_addresses(target.host, target.port)
        if found is None:
            found = await self._look_up((tenant_id, target.host, target.port))
        found = filter_allowed(found, target, refused, networks)
        if found and not (target.scheme == "https" and all(one.is_global for one in found)):
            # a public server with a certificate for the name is the tenant's, so it needs no check
            theirs = await self._addresses_of(refused.names_with_port(target.port), target.port)
            found = [one for one in found if canonical_address(one) not in theirs]
        return found

    def of_files(self, refused: RefusedOrigins, tenant_id: int) -> AllowedAddresses:
        """Return what allows addresses of the URLs of a tenant's files: public ones, and those of
        DISPATCHER_FETCHED_URL_NETWORKS."""

        async def allowed(target: Target) -> list[Address]:
            return await self.allowed_addresses(
                target, refused, tenant_id=tenant_id, networks=settings.DISPATCHER.fetched_url_networks
            )

        return allowed

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
    sock = await connect(target, addresses, _tls())
    try:
        wire = Connection(sock)
        await wire.handshake()
        await wire.send(head_of("POST", target, {"Content-Length": str(len(body)), **headers}))
        await wire.send(body)
        response = await read_response(wire, "POST")
        limit.reschedule(None)  # the answer's head counts, also without a readable body
        with suppress(OSError):
            async with asyncio.timeout(DRAIN_SECONDS):
                await _drain(wire, response.length)
        return Answer(response.status, response.headers.get("Retry-After"))
    finally:
        sock.close()


async def _drain(wire: Connection, length: int | None) -> None:
    """Read the answer's body up to a limit, so that the receiver can finish it."""
    left = MAX_ANSWER_BYTES if length is None else min(length, MAX_ANSWER_BYTES)
    while len(wire.buffer) < left and await wire.receive():
        pass


@lru_cache(maxsize=1)
def _tls() -> ssl.SSLContext:
    return ssl.create_default_context()
