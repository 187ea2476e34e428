"""How many callbacks may be in flight: of all, of one tenant, of one receiver. Pure; owned by one thread.

A tenant may hold at most as many as are free, so whatever some tenants hang on, the next one finds room: one
tenant gets half of all, two get a third each, and so on. Receivers share their tenant's part in the same way.

Source: dynamic thresholds for shared buffers (Choudhury and Hahne, 1998), with a factor of one.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import datetime

Queue = tuple[int, str]
"""A tenant's id and its receiver, as host:port."""


@dataclass(frozen=True, slots=True)
class Limits:
    """bytes: of all bodies. circuit_failures: tries without an answer that open a circuit; 0: none opens."""

    total: int
    per_tenant: int
    per_receiver: int
    bytes: int
    circuit_failures: int


@dataclass(frozen=True, slots=True)
class Circuit:
    """What is known of a receiver that did not answer: see `ReceiverCircuit`."""

    failures: int = 0
    resting_until: datetime | None = None

    def rests(self, now: datetime) -> bool:
        return self.resting_until is not None and now < self.resting_until


CLOSED = Circuit()


class Shares:
    """What is in flight, and whether one more may join."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._queues: Counter[Queue] = Counter()
        self._tenants: Counter[int] = Counter()
        self._bytes: Counter[int] = Counter()
        self.in_flight = 0

    def of_queue(self, queue: Queue) -> int:
        return self._queues[queue]

    def of_tenant(self, tenant_id: int) -> int:
        return self._tenants[tenant_id]

    def may_start(self, queue: Queue, circuit: Circuit, now: datetime, *, size: int = 0) -> bool:
        """size: of the body, in bytes."""
        return self._queues[queue] < min(self._room(queue[0]), self._most(circuit, now)) and self._has_memory(
            queue[0], size
        )

    def tenant_may_start(self, tenant_id: int) -> bool:
        return self._room(tenant_id) > 0

    def start(self, queue: Queue, size: int) -> None:
        self.in_flight += 1
        self._queues[queue] += 1
        self._tenants[queue[0]] += 1
        self._bytes[queue[0]] += size

    def end(self, queue: Queue, size: int) -> None:
        self.in_flight -= 1
        self._queues[queue] -= 1
        self._tenants[queue[0]] -= 1
        self._bytes[queue[0]] -= size
        if not self._queues[queue]:
            del self._queues[queue]
        if not self._tenants[queue[0]]:
            del self._tenants[queue[0]], self._bytes[queue[0]]

    def copy(self) -> Shares:
        """To plan with."""
        other = Shares(self.limits)
        other._queues, other._tenants = self._queues.copy(), self._tenants.copy()
        other._bytes, other.in_flight = self._bytes.copy(), self.in_flight
        return other

    def _room(self, tenant_id: int) -> int:
        """What the tenant may add. None of its receivers may hold more than that."""
        return min(self.limits.total - self.in_flight, self.limits.per_tenant) - self._tenants[tenant_id]

    def _most(self, circuit: Circuit, now: datetime) -> int:
        if not 0 < self.limits.circuit_failures <= circuit.failures:
            return self.limits.per_receiver
        return 0 if circuit.rests(now) else 1

    def _has_memory(self, tenant_id: int, size: int) -> bool:
        """One that is larger than all that is allowed still goes, beside no other of its tenant."""
        free = self.limits.bytes - self._bytes.total()
        held = self._bytes[tenant_id]
        return held + size <= free - size or (not held and free * 2 >= self.limits.bytes)
