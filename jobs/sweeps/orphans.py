"""Running jobs without a worker: the attempt exceeds its model's run limit, or has no lease in a complete
index.

The limit is the model's, never a global number. An attempt with a known remote id gets its lease back, so
that a worker adopts and polls it; any other becomes LOST and its slot is quarantined.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.conf import settings
from django.db.models import QuerySet

from foundation.database import statements
from gpus.leasing.contract import Leases
from gpus.protocol import LeaseRef, slot_name
from jobs.domain.states import AttemptState, JobState
from jobs.execution import follow_ups
from jobs.index_rebuild.rebuild import restore_lease
from jobs.models import Attempt, Job
from jobs.operations.end_lost_attempt import Loss, lose_attempt
from jobs.ports import Ports
from jobs.sweeps.base import SweepCount, sweep_fleets, sweep_rows

GRACE_SECONDS = 60.0
LIMIT = 5000


@dataclass(frozen=True, slots=True)
class _Run:
    """A running job and its live attempt."""

    job: Job
    attempt: Attempt

    @property
    def ref(self) -> LeaseRef:
        slot = slot_name(self.attempt.server, self.attempt.slot)
        return LeaseRef(slot, self.job.id, self.attempt.id, self.attempt.epoch)


_any_running = statements.Read(
    lambda: Job.objects.filter(state=JobState.RUNNING.value).order_by().values_list("state", flat=True)[:1]
)


def _running() -> QuerySet[Job]:
    return Job.objects.filter(state=JobState.RUNNING.value).defer("payload", "result").order_by("id")[:LIMIT]


_oldest = statements.Read(_running)
_old_among = statements.ReadAmong(
    (Attempt, "id"),
    rows=lambda ids: Attempt.objects.filter(
        id__in=ids, started_at__lt=statements.value(Attempt, "started_at")
    ),
)


def is_needed(_ports: Ports) -> bool:
    return bool(_any_running())


def _runs(started_before: datetime) -> list[_Run]:
    """Return live attempts that started before this time, of the `LIMIT` oldest jobs: as these end, later
    ones are examined."""
    jobs = {job.live_attempt: job for job in _oldest() if job.live_attempt}
    ids, found = list(jobs), []
    for at in range(0, len(ids), 500):  # SQLite bounds the number of parameters
        attempts = _old_among(ids[at : at + 500], started_at=started_before)
        found += [_Run(jobs[attempt.id], attempt) for attempt in attempts]
    return found


def _has_worker(run: _Run, leases: Leases) -> bool:
    """Return True if a worker holds the lease. An adoptable lease has none: if no worker adopted it in the
    run limit, none will."""
    views = leases.slots(run.attempt.server)
    is_adoptable = any(view.attempt_id == run.attempt.id and view.state == "adoptable" for view in views)
    return not is_adoptable and leases.is_held(run.ref)


class OrphansSweep:
    """Finds and ends orphaned attempts. leaseless_since: when each attempt was first seen without a lease
    (monotonic seconds)."""

    def __init__(self) -> None:
        self.leaseless_since: dict[str, float] = {}

    def __call__(self, ports: Ports) -> SweepCount:
        """looked: jobs that have run for more than two lease times. repaired: attempts ended or leases
        restored."""
        now = ports.clock.now()
        patience = 2 * settings.DISPATCHER.lease_seconds
        runs = _runs(now - timedelta(seconds=patience))
        for gone in self.leaseless_since.keys() - {run.attempt.id for run in runs}:
            del self.leaseless_since[gone]
        if not runs:
            return SweepCount()

        def step(fleet: str, leases: Leases) -> SweepCount:
            mine = [run for run in runs if run.job.fleet == fleet]
            age = leases.generation_age_seconds() if mine else None
            if age is None or age < patience:
                return SweepCount()
            leaseless = self._without_lease(mine, leases, ports.clock.monotonic(), patience)
            return sweep_rows(
                "orphans",
                mine,
                lambda run: self._repair(run, run.attempt.id in leaseless, leases, now, ports),
            )

        return sweep_fleets("orphans", ports, step)

    def _without_lease(
        self, runs: Sequence[_Run], leases: Leases, monotonic: float, patience: float
    ) -> set[str]:
        """Return the attempts seen without a lease for `patience` seconds; between a release and its commit
        an attempt has none for a moment."""
        by_pool: dict[str, list[_Run]] = defaultdict(list)
        for run in runs:
            by_pool[run.job.pool].append(run)
        missing = set()
        for pool, some in by_pool.items():
            found = leases.has_tickets(pool, [run.job.ticket for run in some])
            missing |= {run.attempt.id for run, has in zip(some, found, strict=True) if not has}
        for run in runs:
            if run.attempt.id not in missing:
                self.leaseless_since.pop(run.attempt.id, None)
        return {
            one for one in missing if monotonic - self.leaseless_since.setdefault(one, monotonic) >= patience
        }

    def _repair(self, run: _Run, leaseless: bool, leases: Leases, now: datetime, ports: Ports) -> bool:
        spec = ports.registry.spec_or_defaults(run.attempt.model, run.job.pool)
        limit = spec.run_limit_seconds + GRACE_SECONDS
        if (now - run.attempt.started_at).total_seconds() > limit:
            if _has_worker(run, leases):
                return False  # that worker enforces the limit itself
            return self._lose(
                run, f"It ran longer than {limit:.0f} s and no worker holds its slot.", leases, ports
            )
        if not leaseless:
            return False
        if run.attempt.state == AttemptState.WAITING:
            return restore_lease(run.job, run.attempt, leases, ports) is not None
        return self._lose(run, "No worker holds its slot.", leases, ports)

    def _lose(self, run: _Run, why: str, leases: Leases, ports: Ports) -> bool:
        loss = Loss(
            job_id=run.job.id,
            attempt_id=run.attempt.id,
            slot=run.ref.slot,
            model=run.attempt.model,
            pool=run.job.pool,
            why=why,
            suspect=True,
            process_died=False,
        )
        ended = lose_attempt(loss, ports)
        leases.quarantine(run.ref.slot, run.attempt.id)
        follow_ups.after_end(ended, ports)
        self.leaseless_since.pop(run.attempt.id, None)
        return ended.won
