"""Why does my job wait? One call to Redis and four bounded queries, and what a tenant with limits is asked
for beside those; deciding is pure (`jobs.explain`)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime

from django.db.models import Count, Max, Q, Sum

from foundation.database import statements
from foundation.database.statements import value
from gpus.errors import LeasingUnavailable
from gpus.leasing.values import Outlook, ParkedFor, StartsIn
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
    """reasons: most binding first, never empty. position: estimated place in line, from 1; None if it stands
    in none."""

    reasons: tuple[Reason, ...]
    starts: StartsIn | None
    position: int | None


_held_back = statements.Read(
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
    now = ports.clock.now()
    if job.state not in WAITING:
        return _answer(_elsewhere(job))
    around = _around(job.fleet, job.pool, job.ticket, ports, is_waiting=True)
    snapshot = replace(
        around,
        state=JobState(job.state),
        cancel_requested=job.cancel_requested_at is not None,
        attempts=job.attempts_made,
        due_in_seconds=_seconds_to(_due_at(job), now),
        later=Later.RUN_AT if job.state == JobState.SCHEDULED else Later.RETRY,
        queued_seconds=max(0.0, (now - _in_line_since(job)).total_seconds()),
        waited_seconds=max(0.0, (now - (job.run_at or job.created_at)).total_seconds()),
    )
    return _answer(snapshot)


def estimate_job(
    model: str, tenant_id: int, priority: int, ports: Ports, *, run_at: datetime | None = None
) -> Explanation:
    """The same for a job that was not submitted; the model is registered. Nothing is stored, and no token is
    taken. What a submit would be refused with comes first."""
    now = ports.clock.now()
    asked = (
        rate_refusal(tenant_id, ports),
        quota_refusal(tenant_id, now, ports),
        QueueLimits(now, [(tenant_id, model)], ports).refusal(tenant_id, model),
    )
    spec = ports.registry.model_spec(model)
    pool = spec.pool if spec else model
    ticket = Ticket("", model, str(tenant_id), priority, int(now.timestamp() * 1_000_000))
    around = _around(ports.registry.fleet_of(pool), pool, ticket, ports, is_waiting=False)
    return _answer(
        replace(
            around,
            refusals=tuple(refused for refused in asked if refused is not None),
            due_in_seconds=_seconds_to(run_at, now),
            later=Later.RUN_AT,
        )
    )


def _around(fleet: str, pool: str, ticket: Ticket, ports: Ports, *, is_waiting: bool) -> Snapshot:
    """What holds for any job of the ticket's model and tenant at its place."""
    index, outlook = _outlook(fleet, pool, ticket, ports, is_waiting=is_waiting)
    now = ports.clock.now()
    paused = _paused(ticket.model, ticket.tenant, now)
    is_asked = not is_waiting or ParkedFor.QUOTA.value in outlook.parked
    return Snapshot(
        state=None,
        model=ticket.model,
        system_paused_seconds=paused.get(Pause.Kind.SYSTEM),
        model_paused_seconds=paused.get(Pause.Kind.MODEL),
        tenant_paused_seconds=paused.get(Pause.Kind.TENANT),
        quota=quota_of(int(ticket.tenant), now, ports) if is_asked else None,
        servers=_servers(ticket.model),
        index=index,
        outlook=outlook,
    )


def _in_line_since(job: Job) -> datetime:
    """The time of its last event, which for a job in line is that it came into the line."""
    return _event_at.first(job_id=job.id, event_seq=job.event_seq) or job.created_at


def _due_at(job: Job) -> datetime | None:
    return job.run_at if job.state == JobState.SCHEDULED else job.due_at


def _seconds_to(at: datetime | None, now: datetime) -> float | None:
    return None if at is None else (at - now).total_seconds()


def _answer(snapshot: Snapshot) -> Explanation:
    reasons = tuple(explain(snapshot))
    comes = snapshot.state is None and not snapshot.refusals
    is_placed = snapshot.index is Index.WHOLE and (comes or snapshot.outlook.in_line)
    return Explanation(
        reasons, starts_in(snapshot, reasons), snapshot.outlook.position if is_placed else None
    )


def _elsewhere(job: Job) -> Snapshot:
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


def _outlook(
    fleet: str, pool: str, ticket: Ticket, ports: Ports, *, is_waiting: bool
) -> tuple[Index, Outlook]:
    try:
        found = ports.leases(fleet).outlook(pool, ticket, is_waiting=is_waiting)
    except LeasingUnavailable:
        return Index.AWAY, Outlook()
    return (Index.REBUILDING if found.rebuilding else Index.WHOLE), found


def _paused(model: str, tenant: str, now: datetime) -> dict[str, float]:
    """Seconds since, by kind."""
    rows = _held_back(model=model, tenant=tenant)
    return {kind: max(0.0, (now - since).total_seconds()) for kind, since in rows}


def _servers(model: str) -> Servers:
    found = {desired: told for desired, *told in _servers_of(model=model)}
    on, slots, fit, too_small, why, _ = found.get(DesiredState.ON.value, (0, 0, 0, 0, "", 0))
    spec = queries.model_spec(model)
    needs_runner = spec is not None and not any(told[-1] for told in found.values())
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
