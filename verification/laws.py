"""The laws over database and leases, by which `prove`, the simulator and the tests judge.

(1), (6), (8) to (12) and the invariants inside one row hold at every moment; the others once writers and
sweeps have drained (`drained=True`). (9) to (12) are in `verification.workflow_laws`, (13) is in
`verification.artifact_laws`. Each law is a function that yields its violations in words."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any

from django.db.models import Count, F, Sum

from foundation.database import statements
from gpus.errors import LeasingUnavailable
from gpus.leasing.values import SlotView
from gpus.models import ModelConfig, Server
from gpus.protocol import ModelSpec, Ticket, slot_name
from jobs.domain.states import FINAL_JOB_STATES, JOB_MOVES, JobState
from jobs.models import Attempt, Callback, Event, Job, PurgeLedger, Rollup, SweepRun
from jobs.ports import Ports
from jobs.reports.rollups import CLOSE, CURSOR, DAY, HOUR
from jobs.sweeps.cancelling import slot_proof
from verification.artifact_laws import check_artifacts
from verification.workflow_laws import check_runs

_FINAL = frozenset(state.value for state in FINAL_JOB_STATES)
_FINAL_EVENTS = frozenset(move.event for move in JOB_MOVES if move.target in FINAL_JOB_STATES)
_PAGE = 500
_LONG = timedelta(minutes=1)
"""Far longer than any sweep that runs every second or two needs for a repair."""
_MOVES = {(move.source.value, move.target.value): move.event for move in JOB_MOVES}

_live = statements.Read(lambda: Attempt.objects.filter(state__in=Attempt.LIVE))
_slots = statements.Read(lambda: Server.objects.values_list("name", "slots", "pool__fleet"))
_named = statements.Read(
    lambda: Job.objects.filter(state=JobState.RUNNING.value).values_list("id", "live_attempt")
)
_ends = statements.Read(
    lambda: Event.objects.filter(type__in=sorted(_FINAL_EVENTS)).values_list("job_id", flat=True)
)
_rounds = statements.Read(lambda: Callback.objects.exclude(job=None).values_list("job_id", "round"))
_jobs = statements.Read(
    lambda: Job.objects.values_list(
        "id", "state", "finished_at", "round", "callback_url", "refusals_folded", "event_seq"
    )
)
_in_state = statements.Read(
    lambda: Job.objects.filter(state=statements.value(Job, "state")).defer("payload", "result")
)
_retries = statements.Read(lambda: ModelConfig.objects.values_list("name", "max_retries"))
_counted = statements.Read(lambda: Attempt.objects.filter(counted=True).values_list("job_id", "round"))
_tried = statements.ReadAmong(
    (Job, "id"), rows=lambda ids: Job.objects.filter(id__in=ids).values_list("id", "model", "max_retries")
)
_states = statements.Read(lambda: Job.objects.order_by().values_list("state").annotate(Count("id")))
_dismissed = statements.Read(
    lambda: statements.summed(
        Job.objects.filter(dismissed_at__isnull=False).exclude(state=JobState.FAILED.value), wrong=Count("id")
    )
)


def check_laws(
    *, drained: bool, ports: Ports, accepted: int | None = None, peak_running: Mapping[str, int] | None = None
) -> list[str]:
    """Return violations, each beginning with its law's number.

    accepted: number of jobs that got a 202, if the scenario counted them. peak_running: the most dispatcher
    jobs that each server ran at once, by its own count."""
    broken = [*_one_holder(ports, peak_running or {}), *_budget(), *_conserved(accepted)]
    broken += check_runs(ports, drained=drained)
    if drained:
        broken += [*_leased(ports), *_running(), *_final(), *_reachable(ports), *replayed(), *_usage()]
        broken += check_artifacts(ports)
    return broken


def _one_holder(ports: Ports, peak_running: Mapping[str, int]) -> Iterator[str]:
    for (server, slot), number in Counter((one.server, one.slot) for one in _live()).items():
        if number > 1:
            yield f"(1) {number} live attempts on slot {slot_name(server, slot)}"
    holders: dict[str, list[str]] = defaultdict(list)
    try:
        views = _views(ports)
    except LeasingUnavailable:
        views = {}  # no slot is granted now
    for view in views.values():
        if view.state in ("leased", "adoptable") and view.job_id:
            holders[view.job_id].append(view.slot)
    for name, slots, _ in _slots():
        if peak_running.get(name, 0) > slots:
            yield f"(1) {name} ran {peak_running[name]} jobs at once on {slots} slots"
    for job_id, held in holders.items():
        if len(held) > 1:
            yield f"(1) job {job_id} holds {held}"


_closing = statements.Read(
    lambda: Event.objects.filter(type__in=CLOSE).order_by("-id").values_list("id", flat=True)[:1]
)
_summed_up = statements.Read(lambda: SweepRun.objects.filter(name=CURSOR).values_list("note", flat=True))
_purged = statements.Read(lambda: PurgeLedger.objects.values_list("count", flat=True))
_attempted = statements.Read(
    lambda: (
        Attempt.objects.exclude(gpu_seconds=None)
        .order_by()
        .values_list("job__tenant")
        .annotate(Sum("gpu_seconds"))
    )
)
_used = statements.Read(
    lambda: (
        Rollup.objects.filter(span_seconds__in=(HOUR, DAY))
        .order_by()
        .values_list("tenant")
        .annotate(Sum("gpu_seconds"))
    )
)


def _usage() -> Iterator[str]:
    """The usage reported to tenants must be the sum of their attempts, once every end is summed up."""
    if int(_summed_up.first() or 0) < (_closing.first() or 0) or any(_purged()):
        return
    used: dict[int, float] = dict(_used())
    for tenant, seconds in _attempted():
        if not math.isclose(used.get(tenant, 0.0), seconds, rel_tol=1e-6, abs_tol=1e-3):
            yield f"(usage) tenant {tenant} used {used.get(tenant, 0.0)} GPU-seconds, its attempts {seconds}"


def _views(ports: Ports) -> dict[str, SlotView]:
    """Return the slots by name. Raises LeasingUnavailable."""
    servers: dict[str, list[str]] = defaultdict(list)
    for name, _, fleet in _slots():
        servers[fleet].append(name)
    return {view.slot: view for fleet in servers for view in ports.leases(fleet).slots_of(servers[fleet])}


def _leased(ports: Ports) -> Iterator[str]:
    views = _views(ports)
    for attempt in _live():
        slot = slot_name(attempt.server, attempt.slot)
        view = views.get(slot)
        if view is None or view.state not in ("leased", "adoptable"):
            yield f"(2) attempt {attempt.id} is live, its slot {slot} is {view.state if view else 'unknown'}"
        elif (view.attempt_id, view.epoch) != (attempt.id, attempt.epoch):
            yield (
                f"(2) slot {slot} is held by {view.attempt_id} epoch {view.epoch}, the database knows "
                f"{attempt.id} epoch {attempt.epoch}"
            )


def _running() -> Iterator[str]:
    live: dict[str, list[str]] = defaultdict(list)
    for attempt in _live():
        live[attempt.job_id].append(attempt.id)
    named = dict(_named())
    for job_id in named.keys() | live.keys():
        if live.get(job_id, []) != [named.get(job_id)]:
            yield f"(3) job {job_id} names attempt {named.get(job_id)}, live are {live.get(job_id, [])}"


def _final() -> Iterator[str]:
    ends = Counter(_ends())
    callbacks: dict[str, list[int]] = defaultdict(list)
    for job_id, number in _rounds():
        callbacks[job_id].append(number)
    for job_id, state, finished_at, rounds, url, *_ in _jobs():
        is_over = state in _FINAL
        if is_over != (finished_at is not None):
            yield f"(4) job {job_id} is {state} and finished at {finished_at}"
        over = rounds if is_over else rounds - 1
        if ends[job_id] != over:
            yield f"(4) job {job_id} ({state}, round {rounds}) has {ends[job_id]} final events"
        wanted = list(range(1, over + 1)) if url else []
        if sorted(callbacks[job_id]) != wanted:
            yield f"(4) job {job_id} has callbacks for rounds {sorted(callbacks[job_id])}, not {wanted}"


def _reachable(ports: Ports) -> Iterator[str]:
    for job in _in_state(state=JobState.RETRYING.value):
        if job.due_at is None:
            yield f"(5) job {job.id} is retrying and never due"
    before = ports.clock.now() - _LONG
    for job in _in_state(state=JobState.SCHEDULED.value):
        if job.run_at is None:
            yield f"(5) job {job.id} is scheduled for no time"
        elif job.run_at < before:
            yield f"(5) job {job.id} should have been queued since {job.run_at}"
    for job in _in_state(state=JobState.CANCELLING.value):
        if evidence := slot_proof(job, before, ports):
            yield f"(5) job {job.id} is being cancelled although its GPU is free: {evidence}"
    lines: dict[tuple[str, str], list[Ticket]] = defaultdict(list)
    for job in _in_state(state=JobState.QUEUED.value):
        lines[job.fleet, job.pool].append(job.ticket)
    for (fleet, pool), tickets in lines.items():
        for at in range(0, len(tickets), 1000):
            page = tickets[at : at + 1000]
            found = ports.leases(fleet).has_tickets(pool, page)
            for ticket, is_there in zip(page, found, strict=True):
                if not is_there:
                    yield f"(5) job {ticket.job_id} waits in {pool} and has no ticket"


def _budget() -> Iterator[str]:
    retries: dict[str, int] = dict(_retries())
    counted = Counter(_counted())
    tried = sorted({job_id for job_id, _ in counted})
    jobs: dict[str, tuple[str, int | None]] = {}
    for at in range(0, len(tried), _PAGE):
        jobs |= {job_id: (model, own) for job_id, model, own in _tried(tried[at : at + _PAGE])}
    for (job_id, number), tries in counted.items():
        if job_id not in jobs:
            continue  # removed by retention meanwhile
        model, own = jobs[job_id]
        budget = 1 + (retries.get(model, ModelSpec("", "").max_retries) if own is None else own)
        if tries > budget:
            yield f"(6) job {job_id} used {tries} of {budget} tries in round {number}"


def replayed() -> Iterator[str]:
    """Law 7: the events of each job lead to its state, and none is missing except those of folded
    refusals."""
    present: dict[str, tuple[int, str | None]] = {}
    missing: Counter[str] = Counter()
    fields = ("job_id", "seq", "type", "data")
    for job_id, seq, kind, data in Event.objects.order_by("job_id", "seq").values_list(*fields).iterator():
        before, status = present.get(job_id, (0, None))
        missing[job_id] += seq - before - 1
        yield from _step(job_id, status, kind, data)
        present[job_id] = (seq, data.get("status", status))
    for job_id, state, *_, refusals, seq in _jobs():
        if missing[job_id] != 2 * refusals:
            yield f"(7) job {job_id}: {missing[job_id]} events are missing, {refusals} refusals were removed"
        if present.get(job_id) != (seq, state):
            yield f"(7) job {job_id} is {state} at event {seq}, its events lead to {present.get(job_id)}"


_BEGINNINGS = (JobState.QUEUED.value, JobState.SCHEDULED.value)


def _step(job_id: str, status: str | None, kind: str, data: Mapping[str, Any]) -> Iterator[str]:
    target = data.get("status")
    if status is None:
        if target not in _BEGINNINGS or kind != target:
            yield f"(7) job {job_id} begins with {kind} → {target}"
    elif target is not None and _MOVES.get((status, target)) != kind:
        yield f"(7) job {job_id}: {status} → {target} by {kind} is no move"


def _conserved(accepted: int | None) -> Iterator[str]:
    states: dict[str, int] = dict(_states())
    strange = states.keys() - {state.value for state in JobState}
    if strange:
        yield f"(8) jobs in states that do not exist: {sorted(strange)}"
    if wrong := _dismissed.first()["wrong"]:
        yield f"(8) {wrong} jobs are dismissed and not failed"
    if accepted is None:
        return
    purged = PurgeLedger.objects.aggregate(total=Sum(F("count")))["total"] or 0
    if accepted != sum(states.values()) + purged:
        yield f"(8) {accepted} jobs were accepted; {states} and {purged} purged are accounted for"
