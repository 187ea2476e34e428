"""What proves that a quarantined slot is free. Pure: rows' facts and a server's answer in, proofs out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from gpus.services.health import Health, absence

QUIET_SECONDS = 5.0
"""Counts are trusted only if no lease of the server changed from this long before the probe to its answer."""
SETTLE_SECONDS = 1.0
"""A request may still stand in the server's accept queue just after its sender let go of it."""


@dataclass(frozen=True, slots=True)
class Suspect:
    """A quarantined slot. boot_id: the server's when the attempt was sent, empty if unknown."""

    key: int
    attempt_id: str
    boot_id: str
    since: datetime
    until: datetime


def outlived(suspects: Sequence[Suspect], now: datetime) -> dict[int, str]:
    """Those whose model can't run any longer, whatever their server says."""
    return {one.key: "the model's run limit has passed" for one in suspects if now >= one.until}


def answered(suspects: Sequence[Suspect], health: Health, asked_at: datetime) -> dict[int, str]:
    """By what the server says of these attempts, or of its own start."""
    if not health.ok:
        return {}
    settled = [one for one in suspects if asked_at - one.since >= timedelta(seconds=SETTLE_SECONDS)]
    proofs = {one.key: _proof(one, health) for one in settled}
    return {key: proof for key, proof in proofs.items() if proof}


def counted(
    suspects: Sequence[Suspect], health: Health, *, leases: int, quiet_seconds: float
) -> dict[int, str]:
    """By the number of running jobs alone: as many of the suspects, the oldest first, as must be free.

    leases: held on the server now. quiet_seconds: since one of them changed, less what the probe took.
    """
    if not health.ok or health.jobs is not None or health.active_jobs is None:
        return {}
    spare = leases + len(suspects) - health.active_jobs
    if quiet_seconds < QUIET_SECONDS or spare <= 0:
        return {}
    oldest = sorted(suspects, key=lambda one: one.since)[:spare]
    proof = f"{health.active_jobs} running, {leases} leased and {len(suspects)} quarantined"
    return {one.key: proof for one in oldest}


def _proof(suspect: Suspect, health: Health) -> str | None:
    if suspect.boot_id and health.boot_id and health.boot_id != suspect.boot_id:
        return "the server restarted"
    if health.jobs is None:
        return None
    if not suspect.attempt_id:
        return None if health.jobs else "the server runs nothing"
    return absence(health, suspect.attempt_id)
