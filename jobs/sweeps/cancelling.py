"""Jobs whose cancel was asked for and whose attempt ended without a proof that the GPU is free of it.

Such a job is CANCELLING while its slot is in quarantine, and CANCELLED with what proved the slot free. Where
no quarantine could be written (the server is not registered any more), the model's run limit is the proof.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from django.db import transaction
from django.db.models import Q

from gpus.models import QuarantinedSlot, prepared
from jobs import transitions
from jobs.models import Attempt, Job
from jobs.services import finish
from jobs.services.ports import Ports
from jobs.states import JobState
from jobs.sweeps.base import SweepCount, sweep_rows
from jobs.sweeps.losses import spec_of

PERIOD_SECONDS = 2.0
LIMIT = 500

_cancelling = prepared.Read(
    lambda: (
        Job.objects.filter(state=JobState.CANCELLING.value)
        .defer("payload", "result")
        .order_by("place_us")[:LIMIT]
    )
)


def sweep(ports: Ports) -> SweepCount:
    """repaired: jobs that are CANCELLED now."""
    now = ports.clock.now()
    return sweep_rows("cancelling", _cancelling(), lambda job: _finish(job, now, ports))


def _finish(job: Job, now: datetime, ports: Ports) -> bool:
    evidence = proof(job, now)
    if evidence is None:
        return False
    with transaction.atomic():
        ended = transitions.finish_cancelling(job.id, now, evidence=evidence)
    finish.after_end(ended, ports)
    return ended.won


def proof(job: Job, now: datetime) -> str | None:
    """What had proved the slot of its last attempt free by then; None: nothing."""
    attempt = Attempt.objects.filter(job=job).order_by("-number").first()
    if attempt is None or attempt.finished_at is None:
        return None
    of_slot = QuarantinedSlot.objects.filter(server=attempt.server, slot=attempt.slot)
    if of_slot.filter(Q(freed_at=None) | Q(freed_at__gt=now)).exists():
        return None
    freed = of_slot.filter(freed_at__gte=attempt.finished_at).order_by("-freed_at").first()
    if freed is not None:
        return freed.evidence
    limit = timedelta(seconds=spec_of(attempt.model, job.pool).run_limit_seconds)
    return "the model's run limit has passed" if now >= attempt.finished_at + limit else None
