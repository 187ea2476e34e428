"""Jobs with a requested cancel that no worker will complete.

- CANCELLING: the attempt ended without a proof that its GPU is free. The job becomes CANCELLED once its slot
  is proven free. Without a quarantine row (the server was removed), the model's run limit is the proof.
- QUEUED: a worker held the ticket when the cancel arrived, and the job was queued again. Its ticket is
  removed and the job becomes CANCELLED.
- RUNNING with an adoptable lease that no worker can adopt: the attempt ends at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from functools import cache

from django.db import transaction
from django.db.models import Q

from foundation.database import statements
from gpus.models import QuarantinedSlot
from gpus.protocol import slot_name
from jobs import transitions
from jobs.domain.states import AttemptState, JobState
from jobs.execution import follow_ups, orphaned_runs
from jobs.models import Attempt, Job
from jobs.ports import Ports
from jobs.sweeps.base import SweepCount, sweep_rows

PERIOD_SECONDS = 2.0
LIMIT = 5000
"""Rows read per run; includes jobs that their own workers will end."""

_requested = statements.Read(
    lambda: (
        Job.objects.filter(cancel_requested_at__isnull=False, finished_at=None)
        .defer("payload", "result")
        .order_by("cancel_requested_at")[:LIMIT]
    )
)
_waiting_attempts = statements.ReadAmong(
    (Attempt, "id"), rows=lambda ids: Attempt.objects.filter(id__in=ids, state=AttemptState.WAITING.value)
)


def sweep(ports: Ports) -> SweepCount:
    """looked: jobs examined. repaired: jobs that became CANCELLED."""
    now = ports.clock.now()
    jobs: dict[str, list[Job]] = {state: [] for state in JobState}
    overdue = now - timedelta(seconds=PERIOD_SECONDS)  # workers check their jobs for a cancel every second
    for job in _requested():
        if job.state == JobState.CANCELLING or job.cancel_requested_at <= overdue:
            jobs[job.state].append(job)
    count = sweep_rows(
        "cancelling", jobs[JobState.CANCELLING], lambda job: _finish_cancelling(job, now, ports)
    )
    count += sweep_rows(
        "cancelling", jobs[JobState.QUEUED], lambda job: follow_ups.cancel_waiting(job, ports)
    )
    count += sweep_rows(
        "cancelling", _unadoptable_runs(jobs[JobState.RUNNING]), lambda run: _end_unadoptable(*run, ports)
    )
    return count


def _unadoptable_runs(jobs: Sequence[Job]) -> Iterator[tuple[Job, Attempt, str]]:
    """Yield the running jobs whose attempts no worker can poll, with the attempt and the reason."""
    obstacle = cache(orphaned_runs.why_unreachable)
    by_attempt = {job.live_attempt: job for job in jobs if job.live_attempt}
    ids = list(by_attempt)
    for at in range(0, len(ids), 500):  # SQLite bounds the number of parameters
        for attempt in _waiting_attempts(ids[at : at + 500]):
            if why := obstacle(attempt.server, attempt.model):
                yield by_attempt[attempt.id], attempt, why


def _finish_cancelling(job: Job, now: datetime, ports: Ports) -> bool:
    evidence = slot_proof(job, now, ports)
    if evidence is None:
        return False
    with transaction.atomic():
        ended = transitions.finish_cancelling(job.id, now, evidence=evidence)
    follow_ups.after_end(ended, ports)
    return ended.won


def _end_unadoptable(job: Job, attempt: Attempt, why: str, ports: Ports) -> bool:
    """End the attempt if its lease is adoptable; if a worker holds the lease, that worker ends it."""
    leases, slot = ports.leases(job.fleet), slot_name(attempt.server, attempt.slot)
    if any((view.slot, view.state) == (slot, "adoptable") for view in leases.slots(attempt.server)):
        return orphaned_runs.end_unreachable(attempt, why, leases, ports)
    return False


def slot_proof(job: Job, now: datetime, ports: Ports) -> str | None:
    """Return the evidence that the slot of the job's last attempt was free at `now`; None without a proof."""
    attempt = Attempt.objects.filter(job=job).order_by("-number").first()
    if attempt is None or attempt.finished_at is None:
        return None
    of_slot = QuarantinedSlot.objects.filter(server=attempt.server, slot=attempt.slot)
    own = of_slot.filter(attempt_id=attempt.id)
    of_slot = own if own.exists() else of_slot
    if of_slot.filter(Q(freed_at=None) | Q(freed_at__gt=now)).exists():
        return None
    freed = of_slot.filter(freed_at__gte=attempt.finished_at).order_by("-freed_at").first()
    if freed is not None:
        return freed.evidence
    limit = timedelta(seconds=ports.registry.spec_or_defaults(attempt.model, job.pool).run_limit_seconds)
    return "the model's run limit has passed" if now >= attempt.finished_at + limit else None
