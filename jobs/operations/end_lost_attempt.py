"""How a sweep ends an attempt that nobody will end any more."""

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
    """suspect: the GPU may still be busy with it. process_died: the worker is gone (counts towards poison).
    held_seconds: how long it held its slot; None: since its start. evidence: what proved the slot free."""

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
    """End the attempt as LOST, under the epoch that the database knows. Once the slot is settled, the caller
    calls `jobs.execution.follow_ups.after_end`: before that the job's ticket would be refused as held."""
    with transaction.atomic():
        return _end(loss, ports)


def lose_unwritten(loss: Loss, worker: str, ports: Ports) -> tuple[StartOutcome, Ended]:
    """Its start was never committed: writes the missing row and ends it, in one transaction. JOB_MOVED or
    SLOT_TAKEN: there is nothing to write."""
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
