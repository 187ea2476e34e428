"""Live attempts that are not their job's current attempt. No transition creates one, but a partly restored
backup can.

Such an attempt would block every further start on its slot and of its job. It ends LOST without a charge, and
its slot is quarantined until it is proven free.
"""

from __future__ import annotations

from datetime import timedelta

import structlog
from django.conf import settings
from django.db import transaction
from django.db.models import F, Q, QuerySet

from gpus.leasing.contract import Leases
from gpus.protocol import slot_name
from jobs import transitions
from jobs.models import Attempt
from jobs.ports import Ports
from jobs.sweeps.base import SweepCount, sweep_fleets, sweep_rows

log = structlog.get_logger(__name__)

PERIOD_SECONDS = 30.0
LIMIT = 500
WHY = "The attempt is not the current attempt of its job."


def sweep(ports: Ports) -> SweepCount:
    """repaired: attempts ended."""
    before = ports.clock.now() - timedelta(seconds=settings.DISPATCHER.lease_seconds)
    found = list(_stray().filter(started_at__lt=before).select_related("job").order_by("id")[:LIMIT])
    if not found:
        return SweepCount()

    def step(fleet: str, leases: Leases) -> SweepCount:
        mine = [attempt for attempt in found if attempt.job.fleet == fleet]
        return sweep_rows("stray_attempts", mine, lambda attempt: _end(attempt, leases, ports))

    return sweep_fleets("stray_attempts", ports, step)


def _stray() -> QuerySet[Attempt]:
    runs_another = Q(job__live_attempt=None) | ~Q(job__live_attempt=F("id"))
    live = Attempt.objects.filter(runs_another, state__in=Attempt.LIVE)
    return live.defer("job__payload", "job__result")


def _end(attempt: Attempt, leases: Leases, ports: Ports) -> bool:
    slot = slot_name(attempt.server, attempt.slot)
    spec = ports.registry.spec_or_defaults(attempt.model, attempt.job.pool)
    with transaction.atomic():
        if not transitions.lose_stray(attempt.job_id, attempt.id, ports.clock.now(), why=WHY):
            return False
        transitions.quarantine_slot(
            slot,
            attempt_id=attempt.id,
            job_id=attempt.job_id,
            model=attempt.model,
            reason="stray attempt",
            at=ports.clock.now(),
            run_limit_seconds=spec.run_limit_seconds,
        )
    log.warning("stray_attempt_ended", job_id=attempt.job_id, attempt=attempt.id, slot=slot)
    leases.quarantine(slot, attempt.id, pool=attempt.job.pool)
    return True
