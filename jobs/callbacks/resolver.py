"""Look-ups of receivers' names beside an event loop.

The system's resolver blocks, knows no time limit and can't be interrupted. So each look-up is a thread, their
number is bounded, and tenants share them.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter, deque
from contextlib import suppress

from django.conf import settings

from . import addresses
from .addresses import Address, literal_addresses
from .guard import allowed

_Name = tuple[int, str, int]


class Resolver:
    """Of one event loop, and used in its thread only."""

    def __init__(self) -> None:
        self._pending: dict[_Name, asyncio.Future[list[Address]]] = {}
        self._waiting: dict[int, deque[_Name]] = {}
        self._running: Counter[int] = Counter()

    async def allowed_addresses(self, host: str, port: int, *, tenant_id: int) -> list[Address]:
        """The addresses of `host` that may be connected to, best first; none if all are refused.

        Raises OSError (`socket.gaierror`, `TimeoutError`) when the name can't be resolved.
        """
        found = literal_addresses(host, port)
        if found is None:
            found = await self._look_up((tenant_id, host, port))
        return allowed(found)

    async def _look_up(self, name: _Name) -> list[Address]:
        pending = self._pending.get(name)
        if pending is None:
            pending = self._pending[name] = asyncio.get_running_loop().create_future()
            self._waiting.setdefault(name[0], deque()).append(name)
            self._start()
        seconds = settings.DISPATCHER.callback_lookup_seconds
        try:
            async with asyncio.timeout(seconds):
                return await asyncio.shield(pending)
        except TimeoutError:
            self._forget(name)
            raise TimeoutError(f"the name {name[1]} was not resolved in {seconds:g} s") from None

    def _start(self) -> None:
        """The tenant with the fewest threads first; a tenant gets no more than are left for others."""
        limit = settings.DISPATCHER.callback_lookups
        while self._waiting and (free := limit - self._running.total()) > 0:
            tenant = min(self._waiting, key=lambda waiting: self._running[waiting])
            if self._running[tenant] >= max(free, 1):
                return
            names = self._waiting[tenant]
            name = names.popleft()
            if not names:
                del self._waiting[tenant]
            self._running[tenant] += 1
            loop = asyncio.get_running_loop()
            threading.Thread(target=self._ask, args=(loop, name), name="callback-lookup", daemon=True).start()

    def _ask(self, loop: asyncio.AbstractEventLoop, name: _Name) -> None:
        answer: list[Address] | Exception
        try:
            answer = addresses.resolve(name[1], name[2])
        except Exception as error:
            answer = error
        with suppress(RuntimeError):  # the loop was closed meanwhile
            loop.call_soon_threadsafe(self._answered, name, answer)

    def _answered(self, name: _Name, answer: list[Address] | Exception) -> None:
        self._running[name[0]] -= 1
        if not self._running[name[0]]:
            del self._running[name[0]]
        pending = self._pending.pop(name, None)
        if pending is not None and not pending.done():
            if isinstance(answer, Exception):
                pending.set_exception(answer)
                pending.exception()  # those who asked may all have given up
            else:
                pending.set_result(answer)
        self._start()

    def _forget(self, name: _Name) -> None:
        """One that still waits for a thread needs none any more; a later try asks anew."""
        self._pending.pop(name, None)
        names = self._waiting.get(name[0])
        if names is not None and name in names:
            names.remove(name)
            if not names:
                del self._waiting[name[0]]
