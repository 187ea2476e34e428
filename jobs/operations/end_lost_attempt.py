"""Ends attempts as LOST on behalf of a dead worker; called by sweeps."""

from __future__ import annotations

from dataclasses import dataclass

from django.db import transaction

from foundation.database import statements
from gpus.errors import ServerLost
from jobs import transitions
from jobs.domain.retry import Ending
from jobs.execution import follow_ups
from jobs.models import Attempt, Job
from jobs.ports import Ports
from jobs.transitions import End, Ended, Start, StartOutcome

_lost = statements.Read(
    lambda: Attempt.objects.filter(id=statements.value(Attempt, "id")).values("epoch", "started_at")
)
_job = statements.Read(lambda: Job.objects.filter(id=statements.value(Job, "id")).values("max_retries"))


@dataclass(frozen=True, slots=True)
class Loss:
    """An attempt to end as LOST.

    why: the error message. suspect: the GPU may still run it, so its slot is quarantined. process_died: the
    worker died, which counts towards `poison`. held_seconds: time for which it held its slot; None: since its
    start. evidence: what proved the slot free.
    """

    job_id: str
    attempt_id: str
    slot: str
    model: str
    pool: str
    why: str
    suspect: bool
    process_died: bool
    held_seconds: float | None = None
    evidence: str = ""


def lose_attempt(loss: Loss, ports: Ports) -> Ended:
    """End the attempt as LOST, under the epoch of its row.

    The caller resolves the lease and then calls `jobs.execution.follow_ups.after_end`: before that, Redis
    would refuse the job's new ticket, because the job still holds a slot.
    """
    with transaction.atomic():
        return _end(loss, ports)


def lose_unwritten(loss: Loss, worker: str, ports: Ports) -> tuple[StartOutcome, Ended]:
    """Write the row of an attempt whose start was never committed, and end it as LOST, in one transaction.

    worker: name of the worker that held the lease. Returns the outcome of the start and the end; after
    JOB_MOVED or SLOT_TAKEN neither is written.
    """
    start = Start(loss.job_id, loss.attempt_id, loss.slot, loss.model, worker, ports.clock.now())
    with transaction.atomic():
        outcome = transitions.start_attempt(start)
        ended = _end(loss, ports) if outcome is StartOutcome.STARTED else Ended(won=False)
    return outcome, ended


def _end(loss: Loss, ports: Ports) -> Ended:
    now = ports.clock.now()
    found, job = _lost.first(id=loss.attempt_id), _job.first(id=loss.job_id)
    if found is None or job is None:
        return Ended(won=False)
    spec = ports.registry.spec_or_defaults(loss.model, loss.pool)
    held = loss.held_seconds
    return transitions.end_attempt(
        End(
            job_id=loss.job_id,
            attempt_id=loss.attempt_id,
            epoch=found["epoch"],
            slot=loss.slot,
            ending=Ending(ServerLost(loss.why), suspect=loss.suspect, process_died=loss.process_died),
            policy=follow_ups.policy_for(spec, job["max_retries"]),
            at=now,
            gpu_seconds=(now - found["started_at"]).total_seconds() if held is None else held,
            run_limit_seconds=spec.run_limit_seconds,
            evidence=loss.evidence,
        )
    )
