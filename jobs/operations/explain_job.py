"""Collects the facts for "why does my job wait?" and "when would this job start?"; `jobs.explain` decides, as
pure functions. One call to Redis and four bounded queries, plus the checks of a tenant's limits."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime

from django.db.models import Count, Max, Q, Sum

from foundation.database import statements
from foundation.database.statements import value
from gpus.errors import LeasingUnavailable
from gpus.leasing.values import ParkedFor, QueueStatus, StartsIn
from gpus.models import ModelConfig, Pause, Placement
from gpus.protocol import DesiredState, Ticket
from gpus.registry import queries
from gpus.runners.registry import find_runner
from jobs.domain.states import JobState
from jobs.explain.decide import WAITING, explain
from jobs.explain.interval import starts_in
from jobs.explain.snapshot import Index, Later, Reason, Servers, Snapshot
from jobs.limits.submit_limits import QueueLimits, quota_of, quota_refusal, rate_refusal
from jobs.models import Attempt, Event, Job
from jobs.ports import Ports


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a job waits. reasons: never empty, the most binding first. starts: estimated start; None if
    unknown. position: estimated position in the queue, from 1; None if it is not queued."""

    reasons: tuple[Reason, ...]
    starts: StartsIn | None
    position: int | None


_pauses = statements.Read(
    lambda: Pause.objects.filter(
        Q(kind=Pause.Kind.SYSTEM)
        | Q(kind=Pause.Kind.MODEL, name=value(Pause, "name", "model"))
        | Q(kind=Pause.Kind.TENANT, name=value(Pause, "name", "tenant"))
    ).values_list("kind", "since")
)
_event_at = statements.Read(
    lambda: Event.objects.filter(job__pk=value(Job, "id", "job_id"), seq=value(Job, "event_seq")).values_list(
        "at", flat=True
    )
)
_servers_of = statements.Read(
    lambda: (
        Placement.objects.filter(model=value(ModelConfig, "name", "model"))
        .order_by()
        .values_list("server__desired")
        .annotate(
            Count("pk"),
            Sum("server__slots"),
            fit=Count("pk", filter=queries.FIT),
            too_small=Count("pk", filter=queries.TOO_SMALL),
            why=Max("too_large", filter=queries.TOO_SMALL),
            pinned=Count("pk", filter=Q(server__host__isnull=False)),
        )
    )
)


def explain_job(job: Job, ports: Ports) -> Explanation:
    """Return why the job is in its state: for a waiting job its reasons and its estimated start."""
    now = ports.clock.now()
    if job.state not in WAITING:
        return _explanation(_snapshot_of_other_state(job))
    surroundings = _surroundings(job.fleet, job.pool, job.ticket, ports, is_waiting=True)
    snapshot = replace(
        surroundings,
        state=JobState(job.state),
        cancel_requested=job.cancel_requested_at is not None,
        attempts=job.attempts_made,
        due_in_seconds=_seconds_to(_due_at(job), now),
        later=Later.RUN_AT if job.state == JobState.SCHEDULED else Later.RETRY,
        queued_seconds=max(0.0, (now - _queued_since(job)).total_seconds()),
        waited_seconds=max(0.0, (now - (job.run_at or job.created_at)).total_seconds()),
    )
    return _explanation(snapshot)


def estimate_job(
    model: str, tenant_id: int, priority: int, ports: Ports, *, run_at: datetime | None = None
) -> Explanation:
    """Return the explanation for a job that would be submitted now. Stores no job and takes no rate-limit
    token.

    model: a registered one. priority: 1 to 9. run_at: the earliest start. Errors with which a submit would be
    refused are the first reasons.
    """
    now = ports.clock.now()
    refusals = (
        rate_refusal(tenant_id, ports),
        quota_refusal(tenant_id, now, ports),
        QueueLimits(now, [(tenant_id, model)], ports).refusal(tenant_id, model),
    )
    spec = ports.registry.model_spec(model)
    pool = spec.pool if spec else model
    ticket = Ticket("", model, str(tenant_id), priority, int(now.timestamp() * 1_000_000))
    surroundings = _surroundings(ports.registry.fleet_of(pool), pool, ticket, ports, is_waiting=False)
    return _explanation(
        replace(
            surroundings,
            refusals=tuple(refused for refused in refusals if refused is not None),
            due_in_seconds=_seconds_to(run_at, now),
            later=Later.RUN_AT,
        )
    )


def _surroundings(fleet: str, pool: str, ticket: Ticket, ports: Ports, *, is_waiting: bool) -> Snapshot:
    """Return the facts that hold for any job of the ticket's model and tenant at its place in the queue."""
    index, queue_status = _queue_status(fleet, pool, ticket, ports, is_waiting=is_waiting)
    now = ports.clock.now()
    paused = _paused(ticket.model, ticket.tenant, now)
    needs_quota = not is_waiting or ParkedFor.QUOTA.value in queue_status.parked
    return Snapshot(
        state=None,
        model=ticket.model,
        system_paused_seconds=paused.get(Pause.Kind.SYSTEM),
        model_paused_seconds=paused.get(Pause.Kind.MODEL),
        tenant_paused_seconds=paused.get(Pause.Kind.TENANT),
        quota=quota_of(int(ticket.tenant), now, ports) if needs_quota else None,
        servers=_servers(ticket.model),
        index=index,
        queue_status=queue_status,
    )


def _queued_since(job: Job) -> datetime:
    """Return the time of the job's last event; for a queued job that is when it was queued."""
    return _event_at.first(job_id=job.id, event_seq=job.event_seq) or job.created_at


def _due_at(job: Job) -> datetime | None:
    return job.run_at if job.state == JobState.SCHEDULED else job.due_at


def _seconds_to(at: datetime | None, now: datetime) -> float | None:
    return None if at is None else (at - now).total_seconds()


def _explanation(snapshot: Snapshot) -> Explanation:
    reasons = tuple(explain(snapshot))
    would_be_queued = snapshot.state is None and not snapshot.refusals
    is_placed = snapshot.index is Index.WHOLE and (would_be_queued or snapshot.queue_status.in_line)
    return Explanation(
        reasons, starts_in(snapshot, reasons), snapshot.queue_status.position if is_placed else None
    )


def _snapshot_of_other_state(job: Job) -> Snapshot:
    """Return the snapshot of a job that does not wait: it runs, is being cancelled, or has ended."""
    live = Attempt.objects.filter(job=job, state__in=Attempt.LIVE).only("server", "slot").first()
    return Snapshot(
        state=JobState(job.state),
        model=job.model,
        error_code=job.error_code,
        cancel_requested=job.cancel_requested_at is not None,
        server=live.server if live else "",
        slot=live.slot if live else 0,
        attempts=job.attempts_made,
    )


def _queue_status(
    fleet: str, pool: str, ticket: Ticket, ports: Ports, *, is_waiting: bool
) -> tuple[Index, QueueStatus]:
    try:
        found = ports.leases(fleet).queue_status(pool, ticket, is_waiting=is_waiting)
    except LeasingUnavailable:
        return Index.AWAY, QueueStatus()
    return (Index.REBUILDING if found.rebuilding else Index.WHOLE), found


def _paused(model: str, tenant: str, now: datetime) -> dict[str, float]:
    """Return for how many seconds the system, the model and the tenant have been paused, by kind."""
    rows = _pauses(model=model, tenant=tenant)
    return {kind: max(0.0, (now - since).total_seconds()) for kind, since in rows}


def _servers(model: str) -> Servers:
    found = {desired: counts for desired, *counts in _servers_of(model=model)}
    on, slots, fit, too_small, why, _ = found.get(DesiredState.ON.value, (0, 0, 0, 0, "", 0))
    spec = queries.model_spec(model)
    # pinned servers (the last count) bring their own code and need no runner
    needs_runner = spec is not None and not any(counts[-1] for counts in found.values())
    return Servers(
        on=on,
        draining=found.get(DesiredState.DRAINING.value, (0,))[0],
        off=found.get(DesiredState.OFF.value, (0,))[0],
        slots=slots or 0,
        unfit=on - fit,
        too_small=too_small,
        too_small_why=why or "",
        missing_runner=spec.model_type
        if spec is not None and needs_runner and find_runner(spec.model_type) is None
        else "",
    )
