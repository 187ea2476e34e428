"""The one way to submit: jobs become durable, then they stand in line.

The committed row is the write-ahead log. What follows the commit (tickets, wakes) is best effort; the
reconciler pushes what is missing. A submit is answered within 3.5 s whatever Redis and the broker do: no push
begins later than `SLOW_REDIS_SECONDS` (one takes three at most), and no wake leaves after that (sending them
takes three at most).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import structlog
from django.db import DatabaseError, DataError, IntegrityError, InterfaceError

from gpus.errors import LeasingUnavailable
from gpus.leasing.values import Pushed, PushResult, Wakes
from gpus.protocol import PushOutcome, Ticket
from jobs.domain.errors import IdempotencyConflict, Refused
from jobs.domain.states import JobState
from jobs.limits.submit_limits import SLOW_REDIS_SECONDS, QueueLimits, ask_redis, limits_of
from jobs.models import Job, Tenant
from jobs.ports import Ports
from jobs.submission.capacity import Capacity
from jobs.submission.insert import (
    Entry,
    SubmitLimits,
    earlier_batch,
    known_keys,
    retry_batch,
    store,
    store_batch,
)
from jobs.submission.request import (
    Allowed,
    Item,
    Outcome,
    SubmitRequest,
    Submitted,
    SubmittedBatch,
    WaitReason,
    checked_unless_known,
)

log = structlog.get_logger()

TURN_SECONDS = 0.25
"""Longest wait of a shared transaction for the lock of a queue limit."""
_RACES = 5
_REFUSALS = ("22", "23", "40", "54", "55")
"""SQLSTATE classes: data, integrity, rolled back, too much, a lock that was not to be had in time."""
_COMMITTED_OR_NOT = "40003"
_NOTHING = Pushed((), ())


class NotTogether(Exception):
    """None of them is stored. The database, or a defect of ours, refused one; each may come alone."""


@dataclass(frozen=True, slots=True)
class Submission:
    """One client's: a job, or a batch. A Refused keeps its place. key_models: those that the API key may
    submit to; None: all of the tenant's. asked_by: what the log says besides."""

    requests: Sequence[SubmitRequest | Refused]
    tenant_id: int
    key_models: frozenset[str] | None = None
    asked_by: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class BatchKey:
    """Of a batch as a whole. fingerprint: equal batches have equal ones."""

    key: str
    fingerprint: str


def submit_job(
    request: SubmitRequest,
    *,
    tenant: Tenant | int,
    ports: Ports,
    key_models: frozenset[str] | None = None,
) -> Submitted:
    """Raises Refused (nothing is stored then) and django.db.OperationalError (database away)."""
    (item,) = submit_batch([request], tenant=tenant, ports=ports, key_models=key_models).items
    if isinstance(item, Refused):
        raise item
    return item


def submit_batch(
    requests: Sequence[SubmitRequest | Refused],
    *,
    tenant: Tenant | int,
    ports: Ports,
    key_models: frozenset[str] | None = None,
    key: BatchKey | None = None,
) -> SubmittedBatch:
    """All of one client's that can be accepted, in one transaction. Raises IdempotencyConflict for the
    batch's key, and OperationalError."""
    if key is not None:
        requests = [_under_its_own_key(request, key.key) for request in requests]
    tenant_id = tenant.pk if isinstance(tenant, Tenant) else tenant
    items, replayed = _store([Submission(requests, tenant_id, key_models)], ports, key=key)
    return SubmittedBatch(push_and_wake(items, ports), replayed)


def submit_together(submissions: Sequence[Submission], ports: Ports) -> Sequence[Item]:
    """Many clients' in one transaction: what it costs to commit, and to tell Redis, they share. What became
    of each request, in order. None of them may make the others wait: who would ask Redis (`reject_if_busy`)
    first comes alone.

    Raises NotTogether; and OperationalError while the database is away: nobody knows then whether they are
    stored."""
    try:
        items, _ = _store(submissions, ports, patience_seconds=TURN_SECONDS)
    except Exception as error:
        if _was_refused(error):
            raise NotTogether from error
        raise
    return push_and_wake(items, ports)


def _store(
    submissions: Sequence[Submission],
    ports: Ports,
    *,
    key: BatchKey | None = None,
    patience_seconds: float | None = None,
) -> tuple[list[Item], bool]:
    """What became of each request, in order; and whether the batch had been accepted before. key: of the only
    one. patience_seconds: how long to wait for a limit that another process counts."""
    capacities: dict[int, Capacity | None] = {}
    for race in range(_RACES):
        try:
            entries = _entries(submissions, ports, capacities, patience_seconds)
            if key is None:
                return store(entries), False
            tenant_id = submissions[0].tenant_id
            earlier = earlier_batch(tenant_id, key.key, key.fingerprint)
            if earlier is None:
                return store_batch(entries, tenant_id, key.key, key.fingerprint), False
            if earlier.is_complete:
                return [item for item in earlier.items if item is not None], True
            return retry_batch(entries, earlier), True
        except IntegrityError:  # somebody used one of these keys meanwhile: the next look finds it
            if race == _RACES - 1:
                raise
    raise AssertionError("unreachable")


def _entries(
    submissions: Sequence[Submission],
    ports: Ports,
    capacities: dict[int, Capacity | None],
    patience_seconds: float | None,
) -> list[Entry]:
    """capacities: by tenant, looked at once, before the first transaction, which is never held over Redis."""
    now = ports.clock.now()
    by_tenant: dict[int, list[SubmitRequest | Refused]] = {}
    for one in submissions:
        by_tenant.setdefault(one.tenant_id, []).extend(one.requests)
    known = {tenant_id: known_keys(tenant_id, requests) for tenant_id, requests in by_tenant.items()}
    checked: list[tuple[Submission, SubmitRequest | Refused]] = []
    for one in submissions:
        may = Allowed(limits_of(one.tenant_id, ports).allowed_models, one.key_models)
        for request in one.requests:
            checked.append((one, checked_unless_known(request, known[one.tenant_id], may, now, ports)))
    asking = [(one.tenant_id, request) for one, request in checked if isinstance(request, SubmitRequest)]
    for tenant_id, used in known.items():
        if tenant_id not in capacities:
            of_tenant = [request for of, request in asking if of == tenant_id and request.reject_if_busy]
            new = [request for request in of_tenant if request.idempotency_key not in used]
            capacities[tenant_id] = Capacity(new, tenant_id, ports) if new else None
    models = [(tenant_id, request.body.model) for tenant_id, request in asking]
    room = QueueLimits(now, models, ports, patience_seconds=patience_seconds)
    limits = {tenant_id: SubmitLimits(tenant_id, now, room, capacities[tenant_id]) for tenant_id in by_tenant}
    return [
        Entry(request, limits[one.tenant_id], known[one.tenant_id], one.asked_by) for one, request in checked
    ]


def _under_its_own_key(request: SubmitRequest | Refused, of_batch: str) -> SubmitRequest | Refused:
    """A key means one thing: the batch, or one of its jobs."""
    if isinstance(request, SubmitRequest) and request.idempotency_key == of_batch:
        return IdempotencyConflict("This is the batch's own key.", pointer="/idempotency_key")
    return request


def _was_refused(error: Exception) -> bool:
    """Whether nothing is stored for sure, and the database is there. What is no answer of the database was
    raised before it was told to commit."""
    if not isinstance(error, (DatabaseError, InterfaceError)):
        return True
    state = getattr(error.__cause__, "sqlstate", None) or ""
    if state == _COMMITTED_OR_NOT:
        return False
    return isinstance(error, (IntegrityError, DataError)) or state[:2] in _REFUSALS


# -- after the commit ----------------------------------------------------------------


def push_and_wake(items: Sequence[Item], ports: Ports) -> tuple[Item, ...]:
    """Pushes the tickets of all queued jobs, and sends the wakes; also of replayed jobs, whose first push may
    have failed."""
    waiting: dict[tuple[str, str], dict[str, Job]] = {}
    for item in items:
        if isinstance(item, Submitted) and item.job.state == JobState.QUEUED:
            waiting.setdefault((item.job.fleet, item.job.pool), {})[item.job.id] = item.job
    began = ports.clock.monotonic()
    results: dict[str, PushResult] = {}
    wakes: list[Wakes] = []
    failing: set[str] = set()
    for (fleet, pool), jobs in waiting.items():
        if ports.clock.monotonic() - began > SLOW_REDIS_SECONDS:
            log.warning("tickets_not_pushed", pool=pool, jobs=len(jobs), error="Redis is slow")
            pushed = _NOTHING
        else:
            pushed = _push(fleet, pool, list(jobs.values()), ports)
        if not pushed.results:
            push_later(fleet, pool, [job.ticket for job in jobs.values()], ports)
        results |= zip(jobs, pushed.results, strict=False)
        wakes += pushed.wakes
        failing |= pushed.failing
    if wakes and ports.clock.monotonic() - began <= SLOW_REDIS_SECONDS:
        ports.send_wakes(wakes)
    return tuple(_with_place(item, results, failing, ports) for item in items)


def _push(fleet: str, pool: str, jobs: Sequence[Job], ports: Ports) -> Pushed:
    tickets = [job.ticket for job in jobs]
    try:
        pushed = ask_redis("tickets_not_pushed", lambda: ports.leases(fleet).push(pool, tickets), ports)
        return pushed or _NOTHING
    except Exception as error:  # the jobs are committed: no defect of ours may make the answer say otherwise
        log.error("tickets_not_pushed", pool=pool, jobs=len(jobs), exc_info=error)
        return _NOTHING


def _with_place(item: Item, results: Mapping[str, PushResult], failing: Set[str], ports: Ports) -> Item:
    if isinstance(item, Refused):
        return item
    if item.job.state == JobState.SCHEDULED:
        return replace(item, wait_reason=WaitReason.LATER_START)
    if item.outcome is not Outcome.QUEUED:
        return item
    result = results.get(item.job.id)
    if result is not None and result.outcome in (PushOutcome.LEASED, PushOutcome.HELD):
        return replace(item, outcome=Outcome.LEASED, position=None)
    position = result.position if result else None
    if item.job.model in failing or not ports.registry.has_capacity(item.job.model):
        return replace(item, position=position, wait_reason=WaitReason.NO_CAPACITY)
    if result is None:
        return item
    return replace(item, position=position, starts=result.starts, wait_reason=WaitReason.BUSY)


# -- tickets that Redis did not take ------------------------------------------------------------------

AGAIN_SECONDS = 1.0
MAX_TICKETS = 10_000


def push_later(fleet: str, pool: str, tickets: Sequence[Ticket], ports: Ports) -> None:
    """Push them again every second until Redis takes them; returns at once. Only in memory: the reconciler
    stands behind it, should the process die with them, or have too many."""
    late = ports.late_tickets
    with late.lock:
        room = MAX_TICKETS - sum(map(len, late.waiting.values()))
        if fitting := tickets[: max(0, room)]:
            of_pool = late.waiting.setdefault((fleet, pool), {})
            of_pool.update({ticket.job_id: ticket for ticket in fitting})
        arm, late.is_armed = not late.is_armed, True
    if arm:
        ports.after(AGAIN_SECONDS, partial(_push_late, ports))


def _push_late(ports: Ports) -> None:
    late = ports.late_tickets
    with late.lock:
        taken, late.waiting = late.waiting, {}
    for (fleet, pool), tickets in taken.items():
        try:
            pushed = ports.leases(fleet).push(pool, list(tickets.values()))
        except LeasingUnavailable:
            with late.lock:
                late.waiting[fleet, pool] = {**tickets, **late.waiting.get((fleet, pool), {})}
            continue
        except Exception:  # not Redis: these would fail for ever; the others and their timer go on
            log.exception("late_tickets_left_to_the_reconciler", pool=pool, tickets=len(tickets))
            continue
        log.info("late_tickets_pushed", pool=pool, tickets=len(tickets))
        ports.send_wakes(pushed.wakes)
    with late.lock:
        late.is_armed = bool(late.waiting)
    if late.is_armed:
        ports.after(AGAIN_SECONDS, partial(_push_late, ports))
