"""Jobs that ended longer ago than the retention time.

Completed, cancelled and dismissed jobs are kept for `retention_days`; other dead letters three times as long,
because an operator may still retry them. Jobs of a workflow run are deleted with it. The transaction that
deletes jobs counts them in the ledger. Paused while clocks disagree. Idempotency keys live as long as their
jobs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import datetime, timedelta

from django.conf import settings
from django.db import transaction
from django.db.models import Exists, F, OuterRef, Q, QuerySet

from artifacts.uses import drop_uses
from foundation.ids import ID_LENGTH, new_id
from jobs.domain.states import FINAL_JOB_STATES
from jobs.execution.worker_heartbeats import drop_old_heartbeats
from jobs.models import (
    DEAD_LETTER,
    Attempt,
    Callback,
    Event,
    Job,
    PurgeLedger,
    PushedResult,
    ReceiverCircuit,
)
from jobs.operations.sign_in import drop_old_failures
from jobs.ports import Ports
from jobs.sweeps.base import SweepCount, clocks_disagree, sweep_rows
from jobs.sweeps.rollups import summed_up_to

DEAD_LETTERS_KEPT = 3
BATCH = 200
_PENDING = Callback.objects.filter(state=Callback.State.PENDING)
BUDGET_SECONDS = 1800.0
"""Time per run, half of the period. A limit on the number of batches would limit the jobs per day."""
PUSHED_KEPT = timedelta(days=1)
CIRCUITS_KEPT = timedelta(days=7)
"""Twice the time for which a callback is retried: no message is sent to that receiver any more."""


def sweep(ports: Ports, *, batch: int = BATCH) -> SweepCount:
    """looked: batches of jobs. repaired: rows deleted: jobs, pushed results that no attempt used, signs of
    dead workers, sign-in failures."""
    if why := clocks_disagree(ports):
        return why
    now = ports.clock.now()
    removed = 0

    def purge(ids: list[str]) -> bool:
        nonlocal removed
        removed += purge_jobs(ids)
        return True

    count = sweep_rows("retention", _old_jobs(now, ports, batch), purge)
    ReceiverCircuit.objects.filter(failed_at__lt=now - CIRCUITS_KEPT).delete()
    return SweepCount(
        count.looked,
        removed + _drop_pushed(now) + drop_old_heartbeats(now) + drop_old_failures(now),
        count.failed,
        count.notes,
    )


def _old_jobs(now: datetime, ports: Ports, batch: int) -> Iterator[list[str]]:
    """Yield job ids in batches for at most `BUDGET_SECONDS`. Ids sort by creation time, which precedes the
    end: old jobs come first."""
    kept = timedelta(days=settings.DISPATCHER.retention_days)
    over = Q(followed_by=None) & (
        Q(finished_at__lt=now - kept) & ~DEAD_LETTER
        | DEAD_LETTER & Q(finished_at__lt=now - DEAD_LETTERS_KEPT * kept)
    )
    made_before = new_id((now - kept).timestamp())[: ID_LENGTH - 16] + "0" * 16
    last, began = "", ports.clock.monotonic()
    while ports.clock.monotonic() - began < BUDGET_SECONDS:
        jobs = Job.objects.filter(over, id__gt=last, id__lt=made_before).order_by("id")
        page = list(jobs.values_list("id", flat=True)[:batch])
        if page:
            last = page[-1]
            yield page
        if len(page) < batch:
            return


def purgeable(ids: list[str]) -> QuerySet[Job]:
    """Select those of these jobs that may be deleted. Kept: dead letters that were retried meanwhile, jobs
    whose end is not in the rollups yet, and jobs with a pending callback, which would be deleted, too."""
    final = [state.value for state in FINAL_JOB_STATES]
    uncounted = Event.objects.filter(job_id__in=ids, id__gt=summed_up_to()).values_list("job_id", flat=True)
    is_called_back = Exists(_PENDING.filter(job_id=OuterRef("id")))
    ended = Job.objects.filter(id__in=sorted(set(ids) - set(uncounted)), state__in=final)
    return ended.exclude(is_called_back)


def purge_jobs(ids: list[str]) -> int:
    """Delete those of these jobs that may be deleted, and return how many."""
    with transaction.atomic():
        rows = list(purgeable(ids).select_for_update().values_list("id", "tenant_id", "state"))
        for (tenant, state), number in Counter((tenant, state) for _, tenant, state in rows).items():
            line, _ = PurgeLedger.objects.get_or_create(tenant_id=tenant, state=state)
            PurgeLedger.objects.filter(pk=line.pk).update(count=F("count") + number)
        drop_uses([job_id for job_id, _, _ in rows])
        # without `only`, Django reads the payloads of the rows that it deletes
        Job.objects.only("id").filter(id__in=[job_id for job_id, _, _ in rows]).delete()
    return len(rows)


def _drop_pushed(now: datetime) -> int:
    live = Attempt.objects.filter(state__in=Attempt.LIVE).values("id")
    return (
        PushedResult.objects.filter(received_at__lt=now - PUSHED_KEPT)
        .exclude(attempt_id__in=live)
        .delete()[0]
    )
