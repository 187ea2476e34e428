"""Idempotency keys of signals and answers that were sent longer ago than they are kept."""

from __future__ import annotations

from datetime import timedelta

from django.conf import settings

from jobs.ports import Ports
from jobs.sweeps.base import SweepCount, clocks_disagree, sweep_rows
from workflows.models import SentSignal

PERIOD_SECONDS = 3600.0
BATCH = 1_000
MAX_BATCHES = 1_000


def sweep(ports: Ports) -> SweepCount:
    """looked, repaired: keys that were deleted."""
    if why := clocks_disagree(ports):
        return why
    before = ports.clock.now() - timedelta(seconds=settings.DISPATCHER.workflow_signal_key_seconds)
    old = SentSignal.objects.filter(sent_at__lt=before).order_by("sent_at")
    deleted = 0

    def delete(batch: int) -> bool:
        nonlocal deleted
        ids = list(old.values_list("pk", flat=True)[:BATCH])
        deleted += SentSignal.objects.filter(pk__in=ids).delete()[0]
        return bool(ids)

    count = SweepCount()
    for batch in range(MAX_BATCHES):
        one = sweep_rows("old_signals", [batch], delete)
        count += one
        if not one.repaired:
            break
    return SweepCount(deleted, deleted, count.failed)
