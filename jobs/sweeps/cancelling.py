"""Jobs whose cancel was asked for, and that nobody who runs them will end.

- CANCELLING: the attempt ended without a proof that the GPU is free of it. The job is CANCELLED with what
  proved the slot free. Where no quarantine could be written (the server is not registered any more), the
  model's run limit is the proof.
- QUEUED: the cancel came while a worker held the ticket, and the job went back into the line. It is taken
  out of the line and CANCELLED.
- RUNNING, with a lease that waits to be adopted and that no worker can adopt: its attempt ends at once.
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
"""Those that their workers will end are among them."""

_requested = statements.Read(
    lambda: (
        Job.objects.filter(cancel_requested_at__isnull=False, finished_at=None)
        .defer("payload", "result")
        .order_by("cancel_requested_at")[:LIMIT]
    )
)
_polled = statements.ReadAmong(
    (Attempt, "id"), rows=lambda ids: Attempt.objects.filter(id__in=ids, state=AttemptState.WAITING.value)
)


def sweep(ports: Ports) -> SweepCount:
    """looked: jobs in question, without those that run. repaired: jobs that are CANCELLED now."""
    now = ports.clock.now()
    jobs: dict[str, list[Job]] = {state: [] for state in JobState}
    overdue = now - timedelta(seconds=PERIOD_SECONDS)  # workers look at their jobs each second
    for job in _requested():
        if job.state == JobState.CANCELLING or job.cancel_requested_at <= overdue:
            jobs[job.state].append(job)
    count = sweep_rows("cancelling", jobs[JobState.CANCELLING], lambda job: _finish(job, now, ports))
    count += sweep_rows(
        "cancelling", jobs[JobState.QUEUED], lambda job: follow_ups.cancel_waiting(job, ports)
    )
    count += sweep_rows("cancelling", _out_of_reach(jobs[JobState.RUNNING]), lambda run: _end(*run, ports))
    return count


def _out_of_reach(jobs: Sequence[Job]) -> Iterator[tuple[Job, Attempt, str]]:
    """Those of these whose runs no worker can poll, and why."""
    obstacle = cache(orphaned_runs.why_unreachable)
    by_attempt = {job.live_attempt: job for job in jobs if job.live_attempt}
    ids = list(by_attempt)
    for at in range(0, len(ids), 500):  # SQLite bounds the number of parameters
        for attempt in _polled(ids[at : at + 500]):
            if why := obstacle(attempt.server, attempt.model):
                yield by_attempt[attempt.id], attempt, why


def _finish(job: Job, now: datetime, ports: Ports) -> bool:
    evidence = proof(job, now, ports)
    if evidence is None:
        return False
    with transaction.atomic():
        ended = transitions.finish_cancelling(job.id, now, evidence=evidence)
    follow_ups.after_end(ended, ports)
    return ended.won


def _end(job: Job, attempt: Attempt, why: str, ports: Ports) -> bool:
    """A worker that holds its lease ends it itself."""
    leases, slot = ports.leases(job.fleet), slot_name(attempt.server, attempt.slot)
    if any((view.slot, view.state) == (slot, "adoptable") for view in leases.slots(attempt.server)):
        return orphaned_runs.end_unreachable(attempt, why, leases, ports)
    return False


def proof(job: Job, now: datetime, ports: Ports) -> str | None:
    """What had proved the slot of its last attempt free by then; None: nothing."""
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
