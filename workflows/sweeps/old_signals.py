"""Idempotency keys of signals and answers that were sent longer ago than they are kept."""

from __future__ import annotations

from datetime import timedelta

import structlog
from django.conf import settings
from django.db import DatabaseError

from jobs.ports import Ports
from jobs.sweeps.base import SweepCount, clocks_disagree
from workflows.models import SentSignal

log = structlog.get_logger(__name__)

PERIOD_SECONDS = 3600.0
BATCH = 1_000
MAX_BATCHES = 1_000


def sweep(ports: Ports, *, batch: int = BATCH, max_batches: int = MAX_BATCHES) -> SweepCount:
    """looked, repaired: keys that were deleted."""
    if why := clocks_disagree(ports):
        return why
    before = ports.clock.now() - timedelta(seconds=settings.DISPATCHER.workflow_signal_key_seconds)
    old = SentSignal.objects.filter(sent_at__lt=before).order_by("sent_at")
    deleted = 0
    for _ in range(max_batches):
        try:
            ids = list(old.values_list("pk", flat=True)[:batch])
            deleted += SentSignal.objects.filter(pk__in=ids).delete()[0]
        except DatabaseError:
            log.exception("old_signals_not_deleted")
            return SweepCount(deleted, deleted, failed=1)
        if len(ids) < batch:
            break
    return SweepCount(deleted, deleted)
