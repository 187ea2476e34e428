"""Refused attempts of a job that waits for a busy server: the last ones are kept, those before are counted.

A server that says 503 for a day refuses a job thousands of times. Such an attempt cost no try, and its two
events, `started` and `requeued`, lead back to where they began: its row goes, and these two with it.
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
"""After it no worker still writes what it saw of an attempt, and clients have read its events."""
MOST_JOBS = 200
MOST_ATTEMPTS = 1000
"""Of one run, each, so that no transaction is long."""


def sweep(ports: Ports) -> SweepCount:
    """looked: unfinished jobs with many attempts. repaired: those that lost some refused ones."""
    often_tried = list(
        Job.objects.filter(finished_at=None, attempts_made__gt=F("refusals_folded") + 2 * ATTEMPTS_SHOWN)
        .order_by("id")
        .values_list("id", flat=True)[:MOST_JOBS]
    )
    if often_tried and (why := clocks_disagree(ports)):
        return why
    before = ports.clock.now() - KEPT

    def fold(job_id: str) -> bool:
        with transaction.atomic():
            job = Job.objects.select_for_update().only("attempts_made").get(id=job_id)
            folded = _remove_refused(job, Attempt.objects.filter(finished_at__lt=before))
            Job.objects.filter(id=job_id).update(refusals_folded=F("refusals_folded") + folded)
        return folded > 0

    return sweep_rows("refusals", often_tried, fold)


def _remove_refused(job: Job, old: QuerySet[Attempt]) -> int:
    """Returns how many attempts went, each with its two events."""
    refused = old.filter(
        job_id=job.id,
        number__lte=job.attempts_made - ATTEMPTS_SHOWN,
        state=AttemptState.REFUSED.value,
        error_code=GpuBusy.code,
        counted=False,
    )
    ids = dict(refused.order_by("number").values_list("number", "id")[:MOST_ATTEMPTS])
    pairs = _pairs(job.id, ids)
    Event.objects.filter(id__in=[event_id for pair in pairs.values() for event_id in pair]).delete()
    Attempt.objects.filter(id__in=[ids[number] for number in pairs]).delete()
    return len(pairs)


def _pairs(job_id: str, numbers: Collection[int]) -> dict[int, tuple[int, int]]:
    """The ids of `started` and `requeued` by the attempt's number, where both are summed up and nothing came
    between them: what stands between two events (a change of priority, say) keeps its place among them."""
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
