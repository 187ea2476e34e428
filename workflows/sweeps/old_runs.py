"""Runs that ended longer ago than the retention time, with all their jobs and sub-runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.conf import settings
from django.db import transaction

from artifacts.uses import drop_run_uses
from foundation.database.connections import write_lock
from jobs.models import Callback, Job
from jobs.ports import Ports
from jobs.sweeps.base import SweepCount, clocks_disagree, sweep_rows
from jobs.sweeps.retention import purge_jobs, purgeable
from workflows.execution.callbacks import callbacks_of
from workflows.models import CachedOutput, Node, Run

PERIOD_SECONDS = 3600.0
MAX_RUNS = 1_000
BATCH = 200
"""Jobs of one transaction."""


def sweep(ports: Ports, *, batch: int = BATCH) -> SweepCount:
    """looked: old runs. repaired: those that were deleted; a run stays until all its jobs may go and
    its callbacks were sent."""
    if why := clocks_disagree(ports):
        return why
    CachedOutput.objects.filter(expires_at__lt=ports.clock.now()).delete()
    before = ports.clock.now() - timedelta(days=settings.DISPATCHER.retention_days)
    old = Run.objects.filter(finished_at__lt=before, parent_node=None).order_by("id")
    ids = list(old.values_list("id", flat=True)[:MAX_RUNS])
    return sweep_rows("old_runs", ids, lambda run_id: _delete(run_id, before, ports.clock.now(), batch))


@dataclass(frozen=True, slots=True)
class _Tree:
    """A run and its sub-runs of all levels, each after the one above it."""

    run_ids: Sequence[str]
    callback_ids: Sequence[str]

    def batches(self, size: int) -> Iterator[list[str]]:
        """Yield the ids of all jobs."""
        nodes = Node.objects.filter(run__in=self.run_ids).exclude(job_id=None).order_by("job_id")
        last = ""
        while ids := [
            one or "" for one in nodes.filter(job_id__gt=last).values_list("job_id", flat=True)[:size]
        ]:
            yield ids
            last = ids[-1]


def _delete(run_id: str, before: datetime, now: datetime, batch_size: int) -> bool:
    """Delete a run with its sub-runs, unless one of them has ended since, or a part of it has to stay.

    Nothing is deleted before all of it may go. From then on the run can't be restarted, as if its data were
    erased: so its jobs can go in batches, and after a crash the next sweep deletes the rest.
    """
    with write_lock(1), transaction.atomic():
        tree = _locked(run_id, before)
        if tree is None or not _may_go(tree, batch_size):
            return False
        Run.objects.filter(id__in=tree.run_ids, erase_requested_at=None).update(erase_requested_at=now)
        Run.objects.filter(id__in=tree.run_ids, erased_at=None).update(erased_at=now)
    for batch in tree.batches(batch_size):
        purge_jobs(batch)
        if Job.objects.filter(id__in=batch).exists():
            return False  # an operator retried a dead letter meanwhile
    with write_lock(1), transaction.atomic():
        Callback.objects.filter(id__in=tree.callback_ids).delete()
        drop_run_uses(tree.run_ids)
        for one in reversed(tree.run_ids):
            Run.objects.only("id").filter(id=one).delete()
    return True


def _locked(run_id: str, before: datetime) -> _Tree | None:
    """Lock a run and its sub-runs; None if one of them has not ended before this time: it was restarted."""
    rows = Run.objects.select_for_update().only("id", "round", "callback_url", "finished_at").order_by("id")
    run_ids, callback_ids = list[str](), list[str]()
    level = list(rows.filter(id=run_id))
    while level:
        if any(run.finished_at is None or run.finished_at >= before for run in level):
            return None
        run_ids += [run.id for run in level]
        for run in level:
            callback_ids += callbacks_of(run).values_list("id", flat=True) if run.callback_url else ()
        level = list(rows.filter(parent_node__run__in=[run.id for run in level]))
    return _Tree(run_ids, callback_ids)


def _may_go(tree: _Tree, batch_size: int) -> bool:
    """Return True if all jobs may be deleted and all callbacks were sent."""
    if Callback.objects.filter(id__in=tree.callback_ids, state=Callback.State.PENDING).exists():
        return False
    return all(
        purgeable(batch).count() == Job.objects.filter(id__in=batch).count()
        for batch in tree.batches(batch_size)
    )
