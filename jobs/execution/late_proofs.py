"""What proved a quarantined slot free is also the evidence of the attempts that kept it shut.

Written in the transaction that closes the quarantine's row. `slot_freed` stays False: it says that an
attempt's own end was the proof.
"""

from __future__ import annotations

from typing import Any

from gpus.models import QuarantinedSlot
from gpus.registry.quarantine import slot_proven_free
from jobs.models import Attempt


def _on_proof(row: QuarantinedSlot, evidence: str, **_: Any) -> None:
    proven = [attempt_id for attempt_id in (row.attempt_id, row.follower_attempt_id) if attempt_id]
    still_open = QuarantinedSlot.objects.filter(attempt_id=row.follower_attempt_id, freed_at=None)
    if row.follower_attempt_id and still_open.exists():
        proven.remove(row.follower_attempt_id)  # its own row needs its own proof
    Attempt.objects.filter(id__in=proven, finished_at__isnull=False, slot_freed=False, evidence="").update(
        evidence=evidence
    )


slot_proven_free.connect(_on_proof, sender=QuarantinedSlot, dispatch_uid="keep-late-proofs")
