"""What one tenant's requests may occupy of a web process at once: requests, bytes of bodies, threads, waits.

A request with a key that was in use a moment ago counts for its tenant, every other one for its address: who
sends it is not known before a thread has looked the key up.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any

import jobs.ports
from dispatcher_project.web.protocol import is_client_gone
from dispatcher_project.web.request_bodies import ClientGone
from foundation.http_api.json_body import LATER_KEY
from foundation.http_api.problems import Problem
from foundation.network import network_of
from jobs.api.authentication import known_tenant
from jobs.api.representations import API_ROOT
from jobs.events.stream import Message, Receive, Send

Scope = dict[str, Any]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]
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
"""Heavy: their answers may have megabytes."""
_LONG_BYTES = 1024 * 1024
_RETRY_SECONDS = 1.0


class TooManyInFlight(Problem):
    """429: the tenant, or the address, has as much under way as it may."""

    def __init__(self, most: int, what: str) -> None:
        super().__init__(
            429,
            CODE,
            f"{most} {what} of this tenant or address are under way, the most at once.",
            retry_after_seconds=_RETRY_SECONDS,
        )


def holder_of(scope: Scope) -> str:
    """Whom a request counts for."""
    known: str | None = scope.get(HOLDER_KEY)
    if known is not None:
        return known
    for name, value in scope["headers"]:
        if name == b"authorization":
            tenant = known_tenant(value.decode("latin1"), jobs.ports.production_ports())
            if tenant is not None:
                return f"tenant {tenant}"
    client = scope.get("client")
    return f"address {network_of(client[0]) if client else ''}"


class InFlight:
    """Of one event loop. what: for people. most: of each holder."""

    def __init__(self, what: str, most: int) -> None:
        self._what, self.most = what, most
        self._held: Counter[str] = Counter()

    @contextmanager
    def of(self, holder: str, amount: int = 1) -> Iterator[None]:
        """Raises TooManyInFlight. One that is alone is always let in."""
        if amount and self._held[holder] and self._held[holder] + amount > self.most:
            raise TooManyInFlight(self.most, self._what)
        self._held[holder] += amount
        try:
            yield
        finally:
            self._held[holder] -= amount
            if not self._held[holder]:
                del self._held[holder]  # holders without a request are forgotten


@dataclass(slots=True)
class _Turns:
    threads: asyncio.Semaphore
    heavy: asyncio.Semaphore
    long: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(1))
    users: int = 0


class FairThreads:
    """Turns at the threads that answer requests. Raises ClientGone if the connection was closed while its
    request waited for a turn.

    site: answers in threads. at_once: threads that one holder may have; its other requests wait.

    heavy_at_once: requests that compute for long under way in the process, of all holders, who take turns:
    threads that compute take the interpreter from each other, and from every short request. Of each holder
    one long body at a time, whose values take many times its memory.
    """

    def __init__(self, site: Application, at_once: int, heavy_at_once: int) -> None:
        self._site, self._at_once, self._heavy_at_once = site, at_once, heavy_at_once
        self._heavy = asyncio.Semaphore(heavy_at_once)
        self._turns: dict[str, _Turns] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        said: list[Message] = []

        async def take(message: Message) -> None:
            said.append(message)

        async with self._turn(scope):
            if is_client_gone(scope):  # while it waited for its turn
                raise ClientGone
            await self._site(scope, receive, take)
        for message in said:  # only now: a client that does not read holds neither turn nor thread
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
                for turn in self._wanted(scope, turns):
                    await held.enter_async_context(turn)
                yield
        finally:
            turns.users -= 1
            if not turns.users:
                del self._turns[holder]

    def _wanted(self, scope: Scope, turns: _Turns) -> Sequence[asyncio.Semaphore]:
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
    if LATER_KEY in scope:  # its body is left with the client
        return 0
    length = next((value for name, value in scope["headers"] if name == b"content-length"), b"")
    return int(length) if length.isdigit() else 0
