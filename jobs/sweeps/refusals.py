"""Refused attempts of a job that waits for a busy server: the newest are kept, older ones are only counted.

A server that answers 503 for a day refuses a job thousands of times. Such an attempt is not charged, and its
two events, `started` and `requeued`, cancel out: its row is deleted together with both.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import timedelta

from django.db import transaction
from django.db.models import F, QuerySet

from gpus.errors import GpuBusy
from jobs.domain.states import AttemptState
from jobs.models import Attempt, Event, Job
from jobs.ports import Ports
from jobs.reports.jobs import ATTEMPTS_SHOWN
from jobs.sweeps.base import SweepCount, clocks_disagree, sweep_rows
from jobs.sweeps.rollups import summed_up_to

PERIOD_SECONDS = 600.0
KEPT = timedelta(hours=1)
"""By then no worker writes to the attempt any more, and clients have read its events."""
MAX_JOBS = 200
"""Jobs per run."""
MAX_ATTEMPTS = 1000
"""Attempts per job and run: no transaction is long."""


def sweep(ports: Ports, *, kept: int = ATTEMPTS_SHOWN) -> SweepCount:
    """kept: newest attempts of a job that stay. looked: unfinished jobs with many attempts. repaired: jobs
    whose old refused attempts were deleted."""
    often_tried = list(
        Job.objects.filter(finished_at=None, attempts_made__gt=F("refusals_folded") + 2 * kept)
        .order_by("id")
        .values_list("id", flat=True)[:MAX_JOBS]
    )
    if often_tried and (why := clocks_disagree(ports)):
        return why
    before = ports.clock.now() - KEPT

    def fold(job_id: str) -> bool:
        with transaction.atomic():
            job = Job.objects.select_for_update().only("attempts_made").get(id=job_id)
            folded = _remove_refused(job, Attempt.objects.filter(finished_at__lt=before), kept)
            Job.objects.filter(id=job_id).update(refusals_folded=F("refusals_folded") + folded)
        return folded > 0

    return sweep_rows("refusals", often_tried, fold)


def _remove_refused(job: Job, old: QuerySet[Attempt], kept: int) -> int:
    """Delete old refused attempts, each with its two events; return how many."""
    refused = old.filter(
        job_id=job.id,
        number__lte=job.attempts_made - kept,
        state=AttemptState.REFUSED.value,
        error_code=GpuBusy.code,
        counted=False,
    )
    ids = dict(refused.order_by("number").values_list("number", "id")[:MAX_ATTEMPTS])
    pairs = _pairs(job.id, ids)
    Event.objects.filter(id__in=[event_id for pair in pairs.values() for event_id in pair]).delete()
    Attempt.objects.filter(id__in=[ids[number] for number in pairs]).delete()
    return len(pairs)


def _pairs(job_id: str, numbers: Collection[int]) -> dict[int, tuple[int, int]]:
    """Return the ids of the events (`started`, `requeued`) by attempt number.

    Only pairs that are in the rollups and have no event in between (a change of priority, for example), which
    would lose its context.
    """
    events = Event.objects.filter(job_id=job_id, type__in=("started", "requeued"), id__lte=summed_up_to())
    found: dict[int, tuple[int, int]] = {}
    begun = (0, 0, 0)
    for event_id, seq, kind, data in events.order_by("seq").values_list("id", "seq", "type", "data"):
        number = data["attempt"]
        if kind == "started":
            begun = (number, seq, event_id)
        elif begun[:2] == (number, seq - 1) and number in numbers:
            found[number] = (begun[2], event_id)
    return found
