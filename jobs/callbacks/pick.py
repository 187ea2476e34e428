"""Picks the next callbacks from their queues, bounds how many are in flight, and reports on deliveries.

A queue has the messages of one tenant to one receiver. Next is the queue with the fewest messages in flight,
then the one that is due longest; `Shares` bounds the messages in flight of all, of a tenant, of a receiver.
Queues are found by a loose index scan of `callback_queue_idx`, from one tenant or receiver to the next, so
the cost of a pick depends on the number of queues and not of messages.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from heapq import heapify, heappop, heappush
from typing import Any

from django.conf import settings
from django.db import connection
from django.db.models import Exists, OuterRef, QuerySet

from foundation.database import statements
from foundation.database.row_codec import database_value
from jobs.callbacks.guard import receiver_of
from jobs.models import Callback, ReceiverCircuit

Queue = tuple[int, str]
"""A tenant's id and its receiver, as host:port."""
LONGEST_DUE = 200
"""Messages whose tenants come first."""
_FILLED_IN = 500
_QUEUES_PER_STATEMENT = 50
_TENANTS = """
WITH RECURSIVE found(tenant_id) AS (
    SELECT MIN(tenant_id) FROM jobs_callback WHERE state = 'pending'
    UNION ALL
    SELECT (SELECT MIN(tenant_id) FROM jobs_callback WHERE state = 'pending' AND tenant_id > found.tenant_id)
    FROM found WHERE found.tenant_id IS NOT NULL
)
SELECT tenant_id FROM found WHERE tenant_id IS NOT NULL
"""
_QUEUES = """
WITH RECURSIVE found(receiver) AS (
    SELECT MIN(receiver) FROM jobs_callback WHERE state = 'pending' AND tenant_id = %s AND receiver > %s
    UNION ALL
    SELECT (
        SELECT MIN(receiver) FROM jobs_callback
        WHERE state = 'pending' AND tenant_id = %s AND receiver > found.receiver
    )
    FROM found WHERE found.receiver IS NOT NULL
)
SELECT receiver, (
    SELECT MIN(next_at) FROM jobs_callback
    WHERE state = 'pending' AND tenant_id = %s AND receiver = page.receiver
)
FROM (SELECT receiver FROM found WHERE receiver IS NOT NULL LIMIT %s) AS page
"""
_MESSAGES = """
SELECT * FROM (
    SELECT id, tenant_id, receiver FROM jobs_callback
    WHERE state = 'pending' AND tenant_id = %s AND receiver = %s AND next_at <= %s
    ORDER BY next_at LIMIT %s
) AS part
"""
_longest_due = statements.Read(
    lambda: (
        Callback.objects.filter(
            state=Callback.State.PENDING, next_at__lte=statements.value(Callback, "next_at")
        )
        .order_by("next_at")
        .values_list("tenant_id", flat=True)[:LONGEST_DUE]
    )
)
MAX_COUNTED = 10_000
"""Counts of the report end here."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of the messages in flight: their number in total, per tenant and per receiver.

    bytes: of all bodies. circuit_failures: tries without an answer that open a circuit; 0: no circuit opens.
    """

    total: int
    per_tenant: int
    per_receiver: int
    bytes: int
    circuit_failures: int


@dataclass(frozen=True, slots=True)
class Circuit:
    """The circuit breaker of a tenant's receiver, as `ReceiverCircuit` stores it."""

    failures: int = 0
    resting_until: datetime | None = None

    def rests(self, now: datetime) -> bool:
        """Return True while no message may be sent to the receiver."""
        return self.resting_until is not None and now < self.resting_until


CLOSED = Circuit()


class Shares:
    """Counts the callbacks in flight, and decides whether one more may start. Pure; for one thread.

    A tenant may have at most as many in flight as are free, so however many tenants have slow receivers, the
    next tenant finds room: one tenant gets half of all, two get a third each, and so on. Receivers share
    their tenant's part in the same way. Source: dynamic thresholds for shared buffers (Choudhury and Hahne,
    1998), with a factor of one.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._queues: Counter[Queue] = Counter()
        self._tenants: Counter[int] = Counter()
        self._bytes: Counter[int] = Counter()
        self.in_flight = 0

    def of_queue(self, queue: Queue) -> int:
        """Return the number of messages of this queue in flight."""
        return self._queues[queue]

    def of_tenant(self, tenant_id: int) -> int:
        """Return the number of messages of this tenant in flight."""
        return self._tenants[tenant_id]

    def may_start(self, queue: Queue, circuit: Circuit, now: datetime, *, size: int = 0) -> bool:
        """Return True if one more message of this queue may start. size: of its body, in bytes."""
        return self._queues[queue] < min(self._room(queue[0]), self._most(circuit, now)) and self._has_memory(
            queue[0], size
        )

    def tenant_may_start(self, tenant_id: int) -> bool:
        """Return True if the tenant may have one more message in flight."""
        return self._room(tenant_id) > 0

    def start(self, queue: Queue, size: int) -> None:
        """Count a message that starts. size: of its body, in bytes."""
        self.in_flight += 1
        self._queues[queue] += 1
        self._tenants[queue[0]] += 1
        self._bytes[queue[0]] += size

    def end(self, queue: Queue, size: int) -> None:
        """Count a message whose try has ended."""
        self.in_flight -= 1
        self._queues[queue] -= 1
        self._tenants[queue[0]] -= 1
        self._bytes[queue[0]] -= size
        if not self._queues[queue]:
            del self._queues[queue]
        if not self._tenants[queue[0]]:
            del self._tenants[queue[0]], self._bytes[queue[0]]

    def copy(self) -> Shares:
        """Return a copy, to plan with."""
        other = Shares(self.limits)
        other._queues, other._tenants = self._queues.copy(), self._tenants.copy()
        other._bytes, other.in_flight = self._bytes.copy(), self.in_flight
        return other

    def _room(self, tenant_id: int) -> int:
        """Return how many the tenant may add; also the limit of one receiver's messages in flight."""
        return min(self.limits.total - self.in_flight, self.limits.per_tenant) - self._tenants[tenant_id]

    def _most(self, circuit: Circuit, now: datetime) -> int:
        if not 0 < self.limits.circuit_failures <= circuit.failures:
            return self.limits.per_receiver
        return 0 if circuit.rests(now) else 1

    def _has_memory(self, tenant_id: int, size: int) -> bool:
        """Return True if the body fits into memory; one larger than the limit is sent as its tenant's only
        one."""
        free = self.limits.bytes - self._bytes.total()
        held = self._bytes[tenant_id]
        return held + size <= free - size or (not held and free * 2 >= self.limits.bytes)


@dataclass(frozen=True, slots=True)
class DueQueue:
    """A queue with at least one message that is due, since `due_at`."""

    queue: Queue
    due_at: datetime
    circuit: Circuit


@dataclass(frozen=True, slots=True)
class PickLimits:
    """Limits of one pick. tenants: half of them those of the messages that are due longest, the others round
    robin. queues: of one tenant; the next pick continues after them. messages: that may start."""

    tenants: int = 50
    queues: int = 500
    messages: int = 200


DEFAULT_LIMITS = PickLimits()


class Picker:
    """Picks due messages. Keeps its position between picks, so that each queue gets its turn however many
    there are."""

    def __init__(self, limits: PickLimits = DEFAULT_LIMITS) -> None:
        self._limits = limits
        self._receiver_before: dict[int, str] = {}
        self._tenant_before = 0

    def pick(self, shares: Shares, now: datetime) -> tuple[list[str], bool]:
        """Return ids of messages that may start now, and True if more are due than were picked. Must not be
        called inside a transaction."""
        longest_due = _longest_due(next_at=now)  # one cheap read: it mostly finds none
        if not longest_due:
            return [], False
        fill_in_queues()
        tenants = self._next_tenants(longest_due, shares)
        due = {tenant_id: list(self._due_queues(tenant_id, now)) for tenant_id in tenants}
        chosen = _plan(due, shares.copy(), now, self._limits.messages)
        found = _messages(chosen, now)
        got = Counter((tenant_id, receiver) for _, tenant_id, receiver in found)
        queues = [one for queues in due.values() for one in queues]
        is_more = any(got[one.queue] == chosen[one.queue] and not one.circuit.rests(now) for one in queues)
        return [pk for pk, _, _ in found], is_more

    def _next_tenants(self, longest_due: Sequence[int | None], shares: Shares) -> list[int]:
        tenants = [tenant_id for tenant_id in tenants_with_pending() if shares.tenant_may_start(tenant_id)]
        may_start = set(tenants)
        due = [one for one in dict.fromkeys(longest_due) if one in may_start][: self._limits.tenants // 2]
        turned = [one for one in tenants if one > self._tenant_before]
        turned += [one for one in tenants if one <= self._tenant_before]
        chosen = turned[: self._limits.tenants - len(due)]
        self._tenant_before = chosen[-1] if len(turned) > len(chosen) else 0
        return sorted(dict.fromkeys([*due, *chosen]), key=shares.of_tenant)

    def _due_queues(self, tenant_id: int, now: datetime) -> Iterator[DueQueue]:
        most = self._limits.queues
        queues = read_queues(tenant_id, self._receiver_before.pop(tenant_id, ""), most)
        if len(queues) == most:
            self._receiver_before[tenant_id] = queues[-1].queue[1]
        return (one for one in queues if one.due_at <= now)


def fill_in_queues() -> None:
    """Fill in tenant and receiver of rows that processes of an older version wrote."""
    rows = Callback.objects.filter(state=Callback.State.PENDING, receiver=None)
    missing = rows.order_by("next_at").values_list("id", "url", "job__tenant_id")[:_FILLED_IN]
    for pk, url, tenant_id in missing:
        Callback.objects.filter(id=pk).update(tenant_id=tenant_id, receiver=receiver_of(url))


def tenants_with_pending() -> list[int]:
    """Return ids of tenants with pending messages, also of those that are due later."""
    return [row[0] for row in _rows(_TENANTS, [])]


def read_queues(tenant_id: int, receiver_before: str = "", most: int = 500) -> list[DueQueue]:
    """Return a tenant's queues with pending messages, also of those that are due later, in order of
    receivers.

    receiver_before: begin after this one. At most `most`.
    """
    rows = _rows(_QUEUES, [tenant_id, receiver_before, tenant_id, tenant_id, most])
    circuits = ReceiverCircuit.objects.filter(tenant_id=tenant_id, receiver__in=[row[0] for row in rows])
    known = {
        receiver: Circuit(failures, resting_until)
        for receiver, failures, resting_until in circuits.values_list("receiver", "failures", "resting_until")
    }
    return [
        DueQueue((tenant_id, receiver), _moment(due_at), known.get(receiver, CLOSED))
        for receiver, due_at in rows
        if due_at is not None
    ]


def _plan(due: Mapping[int, Sequence[DueQueue]], plan: Shares, now: datetime, most: int) -> Counter[Queue]:
    """Return how many messages of each queue may start, `most` in all: tenants in turn, each with its queue
    that has the fewest in flight."""
    chosen: Counter[Queue] = Counter()
    heaps = []
    for queues in due.values():
        heap = [(plan.of_queue(one.queue), one.due_at, one.queue, one.circuit) for one in queues]
        heapify(heap)
        heaps.append(heap)
    while heaps and chosen.total() < most:
        for heap in heaps:
            while heap:
                in_flight, due_at, queue, circuit = heappop(heap)
                if plan.may_start(queue, circuit, now):
                    plan.start(queue, 0)
                    chosen[queue] += 1
                    heappush(heap, (in_flight + 1, due_at, queue, circuit))
                    break
        heaps = [heap for heap in heaps if heap]
    return chosen


def _messages(chosen: Counter[Queue], now: datetime) -> list[tuple[str, int, str]]:
    """Return ids of due messages with tenant and receiver, of each queue at most as many as chosen."""
    field = Callback._meta.get_field("next_at")
    at = database_value(field, now, connection)
    found, items = list[tuple[str, int, str]](), list(chosen.items())
    for first in range(0, len(items), _QUEUES_PER_STATEMENT):
        queues = items[first : first + _QUEUES_PER_STATEMENT]
        values = [one for (tenant_id, receiver), many in queues for one in (tenant_id, receiver, at, many)]
        found += _rows(" UNION ALL ".join([_MESSAGES] * len(queues)), values)
    return found


def _rows(sql: str, values: Sequence[Any]) -> list[Any]:
    with connection.cursor() as cursor:
        cursor.execute(sql, values)
        return list(cursor.fetchall())


def _moment(value: Any) -> datetime:
    """Return the value as a time: SQLite's driver returns texts for expressions."""
    return datetime.fromisoformat(value).replace(tzinfo=UTC) if isinstance(value, str) else value


@dataclass(frozen=True, slots=True)
class DeliveryReport:
    """Numbers of callbacks, counted up to 10,000 each.

    in_flight: being sent now. due: may be sent now. held: due behind an open circuit.
    oldest_due_seconds: how late the first due one is, of each tenant's first 500 receivers.
    """

    in_flight: int
    due: int
    held: int
    oldest_due_seconds: float
    open_circuits: int


def delivery_report(now: datetime) -> DeliveryReport:
    """Read the report from the database."""
    pending = Callback.objects.filter(state=Callback.State.PENDING)
    due = pending.filter(next_at__lte=now)
    here = open_circuits().filter(tenant_id=OuterRef("tenant_id"), receiver=OuterRef("receiver"))
    held = due.filter(Exists(here))[:MAX_COUNTED].count() if open_circuits().exists() else 0
    first = _oldest_due(now)
    return DeliveryReport(
        in_flight=pending.filter(sending_until__gt=now)[:MAX_COUNTED].count(),
        due=max(due[:MAX_COUNTED].count() - held, 0),
        held=held,
        oldest_due_seconds=max(0.0, (now - first).total_seconds()) if first else 0.0,
        open_circuits=open_circuits()[:MAX_COUNTED].count(),
    )


def open_circuits() -> QuerySet[ReceiverCircuit]:
    """Select the open circuits; their receivers get one message at a time."""
    failures = settings.DISPATCHER.callback_circuit_failures
    return (
        ReceiverCircuit.objects.filter(failures__gte=failures) if failures else ReceiverCircuit.objects.none()
    )


def _oldest_due(now: datetime) -> datetime | None:
    failures = settings.DISPATCHER.callback_circuit_failures
    unnamed = Callback.objects.filter(state=Callback.State.PENDING, receiver=None, next_at__lte=now)
    found = list(unnamed.order_by("next_at").values_list("next_at", flat=True)[:1])
    for tenant_id in tenants_with_pending():
        for one in read_queues(tenant_id):
            if one.due_at <= now and not 0 < failures <= one.circuit.failures:
                found.append(one.due_at)
    return min((at for at in found if at is not None), default=None)
