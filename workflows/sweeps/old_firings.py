"""Firings that were decided longer ago than the retention time; one that waits or runs stays."""

from __future__ import annotations

from datetime import timedelta

from django.conf import settings

from foundation.ids import lowest_id
from jobs.ports import Ports
from jobs.sweeps.base import SweepCount, clocks_disagree, sweep_rows
from workflows.schedules.domain.policy import Outcome
from workflows.schedules.models import Firing

PERIOD_SECONDS = 3600.0
BATCH = 1_000
MAX_BATCHES = 500


def sweep(ports: Ports) -> SweepCount:
    """looked: batches. repaired: firings that were deleted."""
    if why := clocks_disagree(ports):
        return why
    before = ports.clock.now() - timedelta(days=settings.DISPATCHER.retention_days)
    old = Firing.objects.filter(id__lt=lowest_id(before.timestamp())).exclude(outcome=Outcome.WAITING.value)
    old = old.exclude(outcome=Outcome.STARTED.value, ended_at=None).order_by("id")
    deleted = 0

    def delete(batch: int) -> bool:
        nonlocal deleted
        ids = list(old.values_list("id", flat=True)[:BATCH])
        deleted += Firing.objects.filter(id__in=ids).delete()[0]
        return bool(ids)

    count = SweepCount()
    for batch in range(MAX_BATCHES):
        one = sweep_rows("old_firings", [batch], delete)
        count += one
        if not one.repaired:
            break
    return SweepCount(count.looked, deleted, count.failed)
