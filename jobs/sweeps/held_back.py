"""Slots that Redis holds back while no row says why: a crash between a row and its script, on either side."""

from __future__ import annotations

from collections.abc import Sequence

import structlog
from django.db import transaction

from gpus.leasing.contract import Leases
from gpus.leasing.values import SlotView
from gpus.models import QuarantinedSlot, Server
from gpus.protocol import split_slot
from jobs import transitions
from jobs.models import Attempt
from jobs.services.ports import Ports
from jobs.states import LIVE_ATTEMPT_STATES
from jobs.sweeps.base import SweepCount, sweep_rows
from jobs.sweeps.losses import spec_of

log = structlog.get_logger(__name__)

PATIENCE_SECONDS = 20.0
"""A quarantine's row may be under way to its commit; no commit takes so long."""

_seen_since: dict[tuple[str, str | None], float] = {}


def free_forgotten(server: Server, views: Sequence[SlotView], leases: Leases, ports: Ports) -> SweepCount:
    """repaired: slots freed, because the last attempt there is proven over, or that got their row."""
    held_back = {(view.slot, view.attempt_id) for view in views if view.state == "quarantined"}
    for key in [key for key in _seen_since if split_slot(key[0])[0] == server.name and key not in held_back]:
        del _seen_since[key]
    if not held_back:
        return SweepCount()
    explained = set(
        QuarantinedSlot.objects.filter(server=server, freed_at=None).values_list("slot", flat=True)
    )
    monotonic = ports.clock.monotonic()
    ripe = []
    for key in held_back:
        if split_slot(key[0])[1] in explained:
            _seen_since.pop(key, None)
        elif monotonic - _seen_since.setdefault(key, monotonic) >= PATIENCE_SECONDS:
            ripe.append(key[0])
    count = sweep_rows("held_back", ripe, lambda slot: _explain_or_free(server, slot, leases, ports))
    return SweepCount(0, count.repaired, count.failed, count.notes)


def _explain_or_free(server: Server, slot: str, leases: Leases, ports: Ports) -> bool:
    last = (
        Attempt.objects.filter(server=server.name, slot=split_slot(slot)[1]).order_by("-started_at").first()
    )
    if last is not None and last.state in LIVE_ATTEMPT_STATES:
        return False  # `orphans` ends it, with a row
    if last is None or last.slot_freed or QuarantinedSlot.objects.filter(attempt_id=last.id).exists():
        log.warning("slot_held_back_without_reason", slot=slot)
        ports.send_wakes(leases.free_slot(slot))
        return True
    with transaction.atomic():
        transitions.quarantine_slot(
            slot,
            attempt_id=last.id,
            job_id=last.job_id,
            model=last.model,
            reason=last.error_code or "uncertain end",
            at=last.finished_at or last.started_at,
            run_limit_seconds=spec_of(last.model, server.pool_id).run_limit_seconds,
        )
    return True
