"""Submits jobs: stores them in one transaction, then pushes their tickets and sends wakes.

The committed row is the write-ahead log. Tickets and wakes are best effort; the reconciler pushes missing
tickets. A submit is answered within 3.5 s even if Redis or the broker hangs: no push begins, and no wake is
sent, later than `SLOW_REDIS_SECONDS` after the commit, and each takes at most three seconds.
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
from jobs.submission.idempotency import earlier_batch, known_keys
from jobs.submission.insert import Entry, SubmitLimits, retry_batch, store, store_batch
from jobs.submission.request import (
    Allowed,
    Item,
    KeyedRequest,
    Outcome,
    SubmitRequest,
    Submitted,
    SubmittedBatch,
    WaitReason,
    checked_unless_replay,
    keys_of,
)

log = structlog.get_logger()

LOCK_WAIT_SECONDS = 0.25
"""Longest wait of a shared transaction for the lock of a queue limit."""
_RACES = 5
"""Tries of a transaction whose idempotency keys another process stored at the same moment."""
_REFUSALS = ("22", "23", "40", "54", "55")
"""SQLSTATE classes of errors that rolled back: data, integrity, rollback, program limit, lock time-out."""
_COMMITTED_OR_NOT = "40003"
_NOTHING = Pushed((), ())


class GroupRefused(Exception):
    """No job of the group is stored: the database or a defect refused one. Each may be submitted alone."""


@dataclass(frozen=True, slots=True)
class Submission:
    """The jobs of one client's request.

    requests: in order; a Refused keeps its place. key_models: models that the API key may submit to; None:
    all of the tenant's. log_fields: further fields of the jobs' log lines.
    """

    requests: Sequence[SubmitRequest | Refused]
    tenant_id: int
    key_models: frozenset[str] | None = None
    log_fields: Mapping[str, Any] = field(default_factory=dict)


def submit_job(
    request: SubmitRequest,
    *,
    tenant: Tenant | int,
    ports: Ports,
    key_models: frozenset[str] | None = None,
) -> Submitted:
    """Submit one job.

    key_models: models that the API key may submit to; None: all of the tenant's.
    Raises Refused, if the job is not stored, and django.db.OperationalError, if the database is away.
    """
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
    idempotency_key: KeyedRequest | None = None,
) -> SubmittedBatch:
    """Submit a client's batch: all jobs that are not refused, in one transaction.

    key_models: as of `submit_job`. idempotency_key: of the whole batch.
    Returns one item per request, in order.
    Raises IdempotencyConflict for the batch's key, and OperationalError, if the database is away.
    """
    if idempotency_key is not None:
        requests = [_under_its_own_key(request, idempotency_key.key) for request in requests]
    tenant_id = tenant.pk if isinstance(tenant, Tenant) else tenant
    items, replayed = _store(
        [Submission(requests, tenant_id, key_models)], ports, idempotency_key=idempotency_key
    )
    return SubmittedBatch(push_and_wake(items, ports), replayed)


def submit_group(submissions: Sequence[Submission], ports: Ports) -> Sequence[Item]:
    """Submit jobs of many clients in one transaction, so that they share the cost of the commit and of Redis.

    None may make the others wait: a submit with `if_busy=reject`, which asks Redis first, has to come alone.
    Returns one item per request, in order.
    Raises GroupRefused; and OperationalError while the database is away, when the jobs may be stored or not.
    """
    try:
        items, _ = _store(submissions, ports, patience_seconds=LOCK_WAIT_SECONDS)
    except Exception as error:
        if _is_not_stored(error):
            raise GroupRefused from error
        raise
    return push_and_wake(items, ports)


def prepare_entries(submissions: Sequence[Submission], ports: Ports) -> list[Entry]:
    """Check the requests and return what `insert.store` stores, one for each request, for a caller that does
    so in a transaction of its own. After its commit, `push_and_wake` follows. No idempotency keys."""
    return _entries(submissions, ports, {}, LOCK_WAIT_SECONDS)


def _store(
    submissions: Sequence[Submission],
    ports: Ports,
    *,
    idempotency_key: KeyedRequest | None = None,
    patience_seconds: float | None = None,
) -> tuple[list[Item], bool]:
    """Store the jobs of these submissions. Return one item per request, in order, and True if the batch was
    accepted before.

    idempotency_key: of the batch, which is the only submission then. patience_seconds: longest wait for the
    lock of a queue limit.
    """
    capacities: dict[int, Capacity | None] = {}
    for race in range(_RACES):
        try:
            entries = _entries(submissions, ports, capacities, patience_seconds)
            if idempotency_key is None:
                return store(entries), False
            tenant_id = submissions[0].tenant_id
            earlier = earlier_batch(tenant_id, idempotency_key.key, idempotency_key.fingerprint)
            if earlier is None:
                return store_batch(
                    entries, tenant_id, idempotency_key.key, idempotency_key.fingerprint
                ), False
            if earlier.is_complete:
                return [item for item in earlier.items if item is not None], True
            return retry_batch(entries, earlier), True
        except IntegrityError:  # another process stored one of these keys meanwhile: the next try reads it
            if race == _RACES - 1:
                raise
    raise AssertionError("unreachable")


def _entries(
    submissions: Sequence[Submission],
    ports: Ports,
    capacities: dict[int, Capacity | None],
    patience_seconds: float | None,
) -> list[Entry]:
    """Check all requests, and return the rows that the transaction must store.

    capacities: by tenant; filled on the first call, since no transaction may be open during a call to Redis.
    """
    now = ports.clock.now()
    keys: dict[int, list[str]] = {}
    for one in submissions:
        keys.setdefault(one.tenant_id, []).extend(keys_of(one.requests))
    known = {tenant_id: known_keys(tenant_id, asked) if asked else {} for tenant_id, asked in keys.items()}
    checked: list[tuple[Submission, SubmitRequest | Refused]] = []
    for one in submissions:
        may = Allowed(limits_of(one.tenant_id, ports).allowed_models, one.key_models)
        for request in one.requests:
            used = known[one.tenant_id]
            found = checked_unless_replay(request, used, may, now, ports, tenant_id=one.tenant_id)
            checked.append((one, found))
    requests_by_tenant = [
        (one.tenant_id, request) for one, request in checked if isinstance(request, SubmitRequest)
    ]
    for tenant_id, used in known.items():
        if tenant_id not in capacities:
            of_tenant = [
                request for of, request in requests_by_tenant if of == tenant_id and request.reject_if_busy
            ]
            new = [request for request in of_tenant if request.idempotency_key not in used]
            capacities[tenant_id] = Capacity(new, tenant_id, ports) if new else None
    models = [(tenant_id, request.body.model) for tenant_id, request in requests_by_tenant]
    queue_limits = QueueLimits(now, models, ports, patience_seconds=patience_seconds)
    limits = {
        tenant_id: SubmitLimits(tenant_id, now, queue_limits, capacities[tenant_id]) for tenant_id in known
    }
    return [
        Entry(request, limits[one.tenant_id], known[one.tenant_id], one.log_fields)
        for one, request in checked
    ]


def _under_its_own_key(request: SubmitRequest | Refused, of_batch: str) -> SubmitRequest | Refused:
    """Refuse a job whose own key is that of its batch."""
    if isinstance(request, SubmitRequest) and request.idempotency_key == of_batch:
        return IdempotencyConflict("This is the batch's own key.", pointer="/idempotency_key")
    return request


def _is_not_stored(error: Exception) -> bool:
    """Return True if it is certain that no job is stored, and the database is not away. An error that is not
    the database's was raised before COMMIT was sent."""
    if not isinstance(error, (DatabaseError, InterfaceError)):
        return True
    state = getattr(error.__cause__, "sqlstate", None) or ""
    if state == _COMMITTED_OR_NOT:
        return False
    return isinstance(error, (IntegrityError, DataError)) or state[:2] in _REFUSALS


# -- after the commit ----------------------------------------------------------------


def push_and_wake(items: Sequence[Item], ports: Ports) -> tuple[Item, ...]:
    """Push the tickets of all queued jobs, and send the wakes; also of replayed jobs, whose first push may
    have failed.

    Returns the items with the values from the push: position, wait reason, forecast.
    """
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
            push_again(fleet, pool, [job.ticket for job in jobs.values()], ports)
        results |= zip(jobs, pushed.results, strict=False)
        wakes += pushed.wakes
        failing |= pushed.failing
    if wakes and ports.clock.monotonic() - began <= SLOW_REDIS_SECONDS:
        ports.send_wakes(wakes)
    return tuple(_with_position(item, results, failing, ports) for item in items)


def _push(fleet: str, pool: str, jobs: Sequence[Job], ports: Ports) -> Pushed:
    tickets = [job.ticket for job in jobs]
    try:
        pushed = ask_redis("tickets_not_pushed", lambda: ports.leases(fleet).push(pool, tickets), ports)
        return pushed or _NOTHING
    except Exception as error:  # the jobs are committed: a defect must not turn the answer into an error
        log.error("tickets_not_pushed", pool=pool, jobs=len(jobs), exc_info=error)
        return _NOTHING


def _with_position(item: Item, results: Mapping[str, PushResult], failing: Set[str], ports: Ports) -> Item:
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


def push_again(fleet: str, pool: str, tickets: Sequence[Ticket], ports: Ports) -> None:
    """Push tickets again every second until Redis answers; returns at once. They are kept in memory, up to
    `MAX_TICKETS`; the reconciler pushes those that are lost."""
    pending = ports.pending_tickets
    with pending.lock:
        free = MAX_TICKETS - sum(map(len, pending.waiting.values()))
        if fitting := tickets[: max(0, free)]:
            of_pool = pending.waiting.setdefault((fleet, pool), {})
            of_pool.update({ticket.job_id: ticket for ticket in fitting})
        arm, pending.is_armed = not pending.is_armed, True
    if arm:
        ports.after(AGAIN_SECONDS, partial(_push_pending, ports))


def _push_pending(ports: Ports) -> None:
    pending = ports.pending_tickets
    with pending.lock:
        taken, pending.waiting = pending.waiting, {}
    for (fleet, pool), tickets in taken.items():
        try:
            pushed = ports.leases(fleet).push(pool, list(tickets.values()))
        except LeasingUnavailable:
            with pending.lock:
                pending.waiting[fleet, pool] = {**tickets, **pending.waiting.get((fleet, pool), {})}
            continue
        except Exception:  # a defect: these tickets would fail for ever, and stop the others
            log.exception("late_tickets_given_up", pool=pool, tickets=len(tickets))
            continue
        log.info("late_tickets_pushed", pool=pool, tickets=len(tickets))
        ports.send_wakes(pushed.wakes)
    with pending.lock:
        pending.is_armed = bool(pending.waiting)
    if pending.is_armed:
        ports.after(AGAIN_SECONDS, partial(_push_pending, ports))
