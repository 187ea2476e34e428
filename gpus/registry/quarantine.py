"""Quarantined slots: list, close by proof, and free by an operator's decision."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

import structlog
from django.db import transaction
from django.db.models import QuerySet
from django.dispatch import Signal

from foundation.texts import counted
from gpus.errors import LeasingUnavailable
from gpus.leasing.values import Wakes
from gpus.models import QuarantinedSlot, Server
from gpus.protocol import slot_name, split_slot
from gpus.registry.audit import record
from gpus.registry.index_sync import LeasesOf
from gpus.registry.model_fields import RegistryRefused
from gpus.registry.registry import MAX_SLOTS

log = structlog.get_logger(__name__)

slot_proven_free = Signal()
"""Sent with `row` and `evidence`, inside the transaction that closes a quarantine row."""


@dataclass(frozen=True, slots=True)
class FreedSlot:
    """Result of `free_slot`.

    attempts: of the closed quarantine rows. wakes: for the caller to send. mirrored: whether the lease layer
    is up to date; if not, a sweep updates it once Redis is back.
    """

    slot: str
    attempts: tuple[str, ...]
    wakes: tuple[Wakes, ...]
    mirrored: bool


def open_quarantines() -> list[QuarantinedSlot]:
    """Open quarantine rows with their servers, the oldest first."""
    return list(
        QuarantinedSlot.objects.filter(freed_at=None)
        .select_related("server")
        .order_by("since", "server", "slot")
    )


def quarantine_json(row: QuarantinedSlot) -> dict[str, Any]:
    """A quarantine row as JSON, for the API and the command line."""
    return {
        "slot": slot_name(row.server_id, row.slot),
        "server": row.server_id,
        "reason": row.reason,
        "model": row.model,
        "job_id": row.job_id or None,
        "attempt_id": row.attempt_id or None,
        "since": row.since,
        "until": row.until,
        "probed_at": row.probed_at,
        "tells_health": row.server.tells_health,
    }


def close_quarantine(row: QuarantinedSlot, *, at: datetime, evidence: str) -> bool:
    """Close a quarantine row. Returns False if another process did already.

    at: time of the proof. evidence: what proved that the row's attempt no longer runs there.
    """
    evidence = evidence[:200]
    with transaction.atomic():
        if not QuarantinedSlot.objects.filter(pk=row.pk, freed_at=None).update(
            freed_at=at, evidence=evidence
        ):
            return False
        slot_proven_free.send(QuarantinedSlot, row=row, evidence=evidence)
    return True


def free_slot(slot: str, *, by: str, leases: LeasesOf, at: datetime, reason: str = "") -> FreedSlot:
    """Free a quarantined slot on an operator's statement that no job runs there; writes an audit entry.

    Raises RegistryRefused: 404 for an unknown slot, 409 for a slot that is not in quarantine.
    """
    server = _server_of(slot)
    with transaction.atomic():
        found = list(_open_rows(slot, server).select_for_update())
        if not found:
            _require_held(slot, server, leases)
        for row in found:
            close_quarantine(row, at=at, evidence=f"freed by {by}")
        quarantines = [
            {
                "attempt": row.attempt_id,
                "job": row.job_id,
                "reason": row.reason,
                "since": row.since.isoformat(),
            }
            for row in found
        ]
        record(by, "free_slot", f"slot:{slot}", quarantines=quarantines, reason=reason)
    log.info("slot_freed_by_operator", slot=slot, by=by)
    attempts = tuple(row.attempt_id for row in found)
    try:
        return FreedSlot(slot, attempts, leases(server.pool.fleet).free_slot(slot), mirrored=True)
    except LeasingUnavailable:
        return FreedSlot(slot, attempts, (), mirrored=False)


def require_quarantined(slot: str, *, leases: LeasesOf) -> None:
    """Check that a slot is in quarantine. Raises RegistryRefused like `free_slot`."""
    server = _server_of(slot)
    if not _open_rows(slot, server).exists():
        _require_held(slot, server, leases)


def _open_rows(slot: str, server: Server) -> QuerySet[QuarantinedSlot]:
    return QuarantinedSlot.objects.filter(server=server, slot=split_slot(slot)[1], freed_at=None)


def _server_of(slot: str) -> Server:
    """Raises RegistryRefused (404)."""
    name, _, index = slot.rpartition("/")
    is_number = index.isascii() and index.isdecimal() and len(index) <= len(str(MAX_SLOTS))
    server = Server.objects.select_related("pool").filter(name=name).first() if is_number else None
    if server is None:
        raise _unknown(slot)
    return server


def _unknown(slot: str, why: str = "slots are named like box-1/0") -> RegistryRefused:
    return RegistryRefused(
        "unknown_slot", f"There is no slot {slot[:80]!r}; {why}.", pointer="/slot", status=404
    )


def _require_held(slot: str, server: Server, leases: LeasesOf) -> None:
    """Raise RegistryRefused unless the lease layer has the slot in quarantine, without a row.

    A slot above the server's count exists while it is held.
    """
    try:
        views = leases(server.pool.fleet).slots(server.name)
    except LeasingUnavailable:
        views = []
    state = next((view.state for view in views if view.slot == slot), None)
    if state == "quarantined":
        return
    if state is None and split_slot(slot)[1] >= server.slots:
        raise _unknown(slot, f"{server.name} has {counted(server.slots, 'slot')}, counted from 0")
    raise RegistryRefused(
        "slot_not_quarantined", f"Slot {slot} is not in quarantine.", pointer="/slot", status=409
    )
