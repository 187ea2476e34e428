"""One signed message, sent once: its name is looked up beside the event loop, the addresses are checked, and
a checked one is connected to."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter, deque
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime

from django.conf import settings

from jobs.domain.errors import CallbackUrlRefused

from . import guard
from .guard import Address, Origins, Target, allowed, literal_addresses, one_of, read_url
from .message import sign
from .pinned_post import Answer, post

KEEP_SECONDS = 10.0
"""Addresses of names in the registry."""
_MOST_KEPT = 10_000
_OURS = 0
"""No tenant's id."""
_Name = tuple[int, str, int]


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
