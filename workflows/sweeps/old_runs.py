"""Runs that ended longer ago than the retention time, with all their jobs and sub-runs."""

from __future__ import annotations

from datetime import timedelta

from django.conf import settings

from artifacts.uses import drop_run_uses
from jobs.models import Callback, Job
from jobs.ports import Ports
from jobs.sweeps.base import SweepCount, clocks_disagree, sweep_rows
from jobs.sweeps.retention import purge_jobs
from workflows.execution.callbacks import callbacks_of
from workflows.models import CachedOutput, Node, Run

PERIOD_SECONDS = 3600.0
MAX_RUNS = 1_000
BATCH = 200
"""Jobs of one transaction."""


def sweep(ports: Ports) -> SweepCount:
    """looked: old runs. repaired: those that were deleted; a run stays until all its jobs may go and
    its callbacks were sent."""
    if why := clocks_disagree(ports):
        return why
    CachedOutput.objects.filter(expires_at__lt=ports.clock.now()).delete()
    before = ports.clock.now() - timedelta(days=settings.DISPATCHER.retention_days)
    old = Run.objects.filter(finished_at__lt=before, parent_node=None).order_by("id")[:MAX_RUNS]
    return sweep_rows("old_runs", old, _delete)


def _delete(run: Run) -> bool:
    """Delete a run, after its sub-runs."""
    for child in Run.objects.filter(parent_node__run=run):
        if not _delete(child):
            return False
    job_ids = list(
        Node.objects.filter(run=run).exclude(job_id=None).order_by("job_id").values_list("job_id", flat=True)
    )
    for first in range(0, len(job_ids), BATCH):
        batch = [job_id for job_id in job_ids[first : first + BATCH] if job_id]
        purge_jobs(batch)
        if Job.objects.filter(id__in=batch).exists():
            return False
    messages = callbacks_of(run)
    if messages.filter(state=Callback.State.PENDING).exists():
        return False
    messages.delete()
    drop_run_uses([run.id])
    run.delete()
    return True
