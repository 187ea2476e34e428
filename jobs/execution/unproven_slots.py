"""Slots whose last run ended without a proof that it is over, and that no row keeps shut.

A quarantine's row belongs to its server, so nobody could write it while that was not registered. It is
written when the server is registered again, by whatever door: in the transaction that makes its row, before
the lease layer hears of it. A rebuild of the index and `held_back` look once more: an end and a registration
that commit at the same moment do not see each other.
"""

from __future__ import annotations

from typing import Any

from django.db import transaction
from django.db.models.signals import post_save

from foundation.database import statements
from gpus.models import AuditEntry, QuarantinedSlot, Server
from gpus.protocol import ModelSpec, slot_name
from gpus.registry import queries as fleet
from gpus.registry.quarantine import slot_proven_free
from jobs import transitions
from jobs.domain.states import LIVE_ATTEMPT_STATES
from jobs.models import Attempt

_last_of_slot = statements.Read(
    lambda: (
        Attempt.objects.filter(
            server=statements.value(Attempt, "server"), slot=statements.value(Attempt, "slot")
        )
        .select_related("job")
        .defer("job__payload", "job__result")
        .order_by("-started_at")[:1]
    )
)


def last_attempt_on(server: str, slot: int) -> Attempt | None:
    found: Attempt | None = _last_of_slot.first(server=server, slot=slot)
    return found


def quarantine_unproven(server: Server, slot: int) -> bool:
    """Writes the row that the slot's last attempt lacks. False: it lacks none, for it lives, has its row, or
    was proven gone. One that lives holds its slot in the index of its own fleet only."""
    last = last_attempt_on(server.name, slot)
    if last is None or last.slot_freed or _lives_here(last, server) or _was_judged(last, server):
        return False
    spec = fleet.model_spec(last.model) or ModelSpec(last.model, server.pool_id)
    with transaction.atomic():
        transitions.quarantine_slot(
            slot_name(server.name, slot),
            attempt_id=last.id,
            job_id=last.job_id,
            model=last.model,
            reason=last.error_code or "uncertain end",
            at=last.finished_at or last.started_at,
            run_limit_seconds=spec.run_limit_seconds,
        )
    return True


def _lives_here(attempt: Attempt, server: Server) -> bool:
    return attempt.state in LIVE_ATTEMPT_STATES and attempt.job.fleet == server.pool.fleet


def _was_judged(attempt: Attempt, server: Server) -> bool:
    """Whether it has its row, or had one that proved it gone before the server was removed."""
    rows = QuarantinedSlot.objects.filter(server=server, slot=attempt.slot, attempt_id=attempt.id)
    if rows.exists():
        return True
    removals = AuditEntry.objects.filter(target=f"server:{server.name}", action="remove_server")
    return any(
        attempt.id in told.get("proven_gone", ()) for told in removals.values_list("detail", flat=True)
    )


def _on_registration(instance: Server, *, created: bool, raw: bool, **_: Any) -> None:
    # most servers are new, and have up to a thousand slots
    if created and not raw and Attempt.objects.filter(server=instance.name).exists():
        for slot in range(instance.slots):
            quarantine_unproven(instance, slot)


post_save.connect(_on_registration, sender=Server, dispatch_uid="keep-unproven-slots-shut")


def _on_proof(row: QuarantinedSlot, evidence: str, **_: Any) -> None:
    proven = [attempt_id for attempt_id in (row.attempt_id, row.follower_attempt_id) if attempt_id]
    still_open = QuarantinedSlot.objects.filter(attempt_id=row.follower_attempt_id, freed_at=None)
    if row.follower_attempt_id and still_open.exists():
        proven.remove(row.follower_attempt_id)  # its own row needs its own proof
    Attempt.objects.filter(id__in=proven, finished_at__isnull=False, slot_freed=False, evidence="").update(
        evidence=evidence
    )


slot_proven_free.connect(_on_proof, sender=QuarantinedSlot, dispatch_uid="keep-late-proofs")
