"""Slots that Redis holds back while no row says why: a crash between a row and its script, on either side."""

from __future__ import annotations

from collections.abc import Sequence

import structlog

from gpus.leasing.contract import Leases
from gpus.leasing.values import SlotView
from gpus.models import QuarantinedSlot, Server
from gpus.protocol import split_slot
from jobs.domain.states import LIVE_ATTEMPT_STATES
from jobs.execution.unproven_slots import last_attempt_on, quarantine_unproven
from jobs.ports import Ports
from jobs.sweeps.base import SweepCount, sweep_rows

log = structlog.get_logger(__name__)

PATIENCE_SECONDS = 20.0
"""A quarantine's row may be under way to its commit; no commit takes so long."""


def _explain_or_free(server: Server, slot: str, leases: Leases, ports: Ports) -> bool:
    index = split_slot(slot)[1]
    last = last_attempt_on(server.name, index)
    if last is not None and last.state in LIVE_ATTEMPT_STATES:
        return False  # `orphans` ends it, with a row
    if not quarantine_unproven(server, index):
        log.warning("slot_held_back_without_reason", slot=slot)
        ports.send_wakes(leases.free_slot(slot))
    return True


class StaleHolds:
    """Keeps since when each hold without a row was seen (monotonic)."""

    def __init__(self) -> None:
        self._seen_since: dict[tuple[str, str | None], float] = {}

    def free_forgotten(
        self, server: Server, views: Sequence[SlotView], leases: Leases, ports: Ports
    ) -> SweepCount:
        """repaired: slots freed, because the last attempt there is proven over, or that got their row."""
        held_back = {(view.slot, view.attempt_id) for view in views if view.state == "quarantined"}
        for key in [
            key for key in self._seen_since if split_slot(key[0])[0] == server.name and key not in held_back
        ]:
            del self._seen_since[key]
        if not held_back:
            return SweepCount()
        explained = set(
            QuarantinedSlot.objects.filter(server=server, freed_at=None).values_list("slot", flat=True)
        )
        monotonic = ports.clock.monotonic()
        ripe = []
        for key in held_back:
            if split_slot(key[0])[1] in explained:
                self._seen_since.pop(key, None)
            elif monotonic - self._seen_since.setdefault(key, monotonic) >= PATIENCE_SECONDS:
                ripe.append(key[0])
        count = sweep_rows("held_back", ripe, lambda slot: _explain_or_free(server, slot, leases, ports))
        return SweepCount(0, count.repaired, count.failed, count.notes)
