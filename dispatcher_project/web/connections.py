"""The open connections of a web process: how many there may be, and which of them is closed first.

Where there is no room for another, the connection goes that has waited longest for a request's head; then
those whose clients take longest over a body or an answer. With neither the new one is refused.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from foundation.client_network import network_of

from .limits import WebLimits

EVICTED_TOGETHER = 32
"""Of those that are found by looking at all connections."""
_LOOK_AGAIN_SECONDS = 0.1


class Reason:
    """Why a connection was ended: the label of dispatcher_web_connections_ended_total."""

    HEAD_LATE = "head_late"
    EVICTED = "evicted"
    REFUSED = "refused"
    READS_SLOWLY = "reads_slowly"
    UNSENT_BYTES = "unsent_bytes"
    HEAD_TOO_LARGE = "head_too_large"
    CHUNKS_TOO_SMALL = "chunks_too_small"
    NO_DESCRIPTORS = "no_descriptors"


class Connection(Protocol):
    """`dispatcher_project.web.protocol.BoundedProtocol`."""

    address_name: str
    since: float

    @property
    def waits_for_client(self) -> bool: ...

    def overdue(self, now: float) -> str: ...

    def end(self, reason: str) -> None: ...


@dataclass(slots=True)
class Address:
    """One client address. waiting: its connections that wait for a request, oldest first."""

    open: int = 0
    waiting: dict[Connection, None] = field(default_factory=dict)


class Connections:
    """is_proxy: an address whose connections are those of many clients."""

    def __init__(
        self,
        limits: WebLimits,
        is_proxy: Callable[[str], bool] = lambda address: False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.limits = limits
        self.clock = clock
        self.ended: Counter[str] = Counter()
        """By reason, since this was last written to the database."""
        self._is_proxy = is_proxy
        self._open: dict[Connection, Address] = {}
        self._waiting: dict[Connection, None] = {}
        self._addresses: dict[str, Address] = {}
        self._unsent: dict[Connection, int] = {}
        self._unsent_bytes = 0
        self._look_at = 0.0

    def __len__(self) -> int:
        return len(self._open)

    def admit(self, connection: Connection, host: str) -> bool:
        """Make room for it, or return False: it has to be refused."""
        name = "" if self._is_proxy(host) else network_of(host)
        address = self._addresses.setdefault(name, Address())
        if name and address.open >= self.limits.per_address and not self._evict_oldest(address.waiting):
            return self._refuse(name, address)
        if len(self._open) >= self.limits.connections and not (
            self._evict_oldest(self._waiting) or self._evict_slow()
        ):
            return self._refuse(name, address)
        self._addresses[name] = address  # the eviction may have removed the last of it
        connection.address_name = name
        self._open[connection] = address
        address.open += 1
        self.wait(connection)
        return True

    def wait(self, connection: Connection) -> None:
        """The server waits for its next request."""
        address = self._open.get(connection)
        if address is not None:
            self._waiting[connection] = None
            address.waiting[connection] = None

    def begin(self, connection: Connection) -> None:
        """A request's head has come."""
        address = self._open.get(connection)
        if address is not None and connection in self._waiting:
            del self._waiting[connection], address.waiting[connection]

    def forget(self, connection: Connection) -> None:
        self.begin(connection)
        self.unsent(connection, 0)
        address = self._open.pop(connection, None)
        if address is None:
            return
        address.open -= 1
        if not address.open:
            self._addresses.pop(connection.address_name, None)

    def unsent(self, connection: Connection, size: int) -> None:
        """It has so many bytes to be sent. Too many over all: those end that have waited longest."""
        self._unsent_bytes += size - self._unsent.pop(connection, 0)
        if size:
            self._unsent[connection] = size
        while self._unsent_bytes > self.limits.unsent_bytes and len(self._unsent) > 1:
            oldest = next(iter(self._unsent))
            self._unsent_bytes -= self._unsent.pop(oldest)
            oldest.end(Reason.UNSENT_BYTES)

    def sweep(self) -> None:
        """End what has no time left; called every second."""
        now = self.clock()
        for connection in list(self._open):
            reason = connection.overdue(now)
            if reason:
                connection.end(reason)

    def free_descriptors(self) -> None:
        """The process has no file descriptor left: the oldest that wait for a head give theirs back."""
        for connection in list(self._waiting)[:EVICTED_TOGETHER]:
            connection.end(Reason.NO_DESCRIPTORS)

    def _refuse(self, name: str, address: Address) -> bool:
        if not address.open:
            self._addresses.pop(name, None)
        self.ended[Reason.REFUSED] += 1
        return False

    def _evict_oldest(self, waiting: dict[Connection, None]) -> bool:
        oldest = next(iter(waiting), None)
        if oldest is not None:
            oldest.end(Reason.EVICTED)
        return oldest is not None

    def _evict_slow(self) -> bool:
        """Looks at all connections, so not for each that comes."""
        now = self.clock()
        if now < self._look_at:
            return False
        self._look_at = now + _LOOK_AGAIN_SECONDS
        slow = [connection for connection in self._open if connection.waits_for_client]
        slow.sort(key=lambda connection: connection.since)
        for connection in slow[:EVICTED_TOGETHER]:
            connection.end(Reason.EVICTED)
        return bool(slow)
