"""Proofs from a GPU server's health answer that an abandoned attempt no longer runs. Pure.

Used for a sender's own attempt (`health.evidence_for`) and by the quarantine sweep for all quarantined slots.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from gpus.runners.base import Health

QUIET_SECONDS = 5.0
"""Counts prove something only if no lease of the server changed from this long before the probe to its
answer."""
STEADY_SECONDS = 20.0
"""A lease counts as a run only after this long without a change: before, the run may have ended, while its
worker is dead (for a lease time, 15 s by default) or has not polled yet."""
SETTLE_SECONDS = 1.0
"""An abandoned request may remain in the server's accept queue for this long."""

RESTARTED = "the server restarted"
REFUSED_BEFORE = "the server refused connections, and answers now: it restarted"


@dataclass(frozen=True, slots=True)
class Suspect:
    """An attempt that may still run on a quarantined slot.

    key: of the quarantine row. boot_id: the server's when the attempt was sent, empty if unknown. since:
    start of the quarantine. until: end of the model's run limit. follower_id: prefetched attempt that may
    have begun after it. was_refused: whether the server's address refused a connection since.
    """

    key: int
    attempt_id: str
    boot_id: str
    since: datetime
    until: datetime
    follower_id: str = ""
    was_refused: bool = False


def is_settled(seconds: float) -> bool:
    """Whether an answer can prove something about a request that was abandoned so many seconds before."""
    return seconds >= SETTLE_SECONDS


def past_run_limit(suspects: Sequence[Suspect], now: datetime) -> dict[int, str]:
    """Proofs by key for suspects whose run limit has passed."""
    return {one.key: "the model's run limit has passed" for one in suspects if now >= one.until}


def proven_by_health(suspects: Sequence[Suspect], health: Health, asked_at: datetime) -> dict[int, str]:
    """Proofs by key from the server's list of jobs or its restart. asked_at: time of the probe."""
    if not health.ok:
        return {}
    settled = [
        one for one in suspects if is_settled((asked_at - one.since).total_seconds() - health.age_seconds)
    ]
    proofs = {one.key: _proof(one, health) for one in settled}
    return {key: proof for key, proof in proofs.items() if proof}


def absence_proof(health: Health, attempt_id: str) -> str | None:
    """A proof if the server's list of jobs lacks the attempt, else None."""
    return "the server does not run it" if health.runs(attempt_id) is False else None


def proven_by_count(
    suspects: Sequence[Suspect],
    health: Health,
    *,
    leases: int,
    quiet_seconds: float,
    steady_seconds: float = STEADY_SECONDS,
) -> dict[int, str]:
    """Proofs by key from the server's number of running jobs: the oldest suspects that cannot be among them.

    leases: held on the server. quiet_seconds: see `spare_by_count`. steady_seconds: after which leases count.
    """
    steady = leases if quiet_seconds >= steady_seconds else 0
    spare = spare_by_count(health, suspects=len(suspects), leases=steady, quiet_seconds=quiet_seconds)
    oldest = sorted(suspects, key=lambda one: one.since)[:spare]
    proof = f"{health.active_jobs} running, {leases} leased and {len(suspects)} quarantined"
    return {one.key: proof for one in oldest}


def spare_by_count(health: Health, *, suspects: int, leases: int, quiet_seconds: float) -> int:
    """How many of the suspects cannot be among the running jobs that the server counts.

    suspects: number of suspects. leases: number that certainly run on the server. quiet_seconds: since one of
    its leases changed, minus the probe's duration. If the server lists its jobs, the list counts, and this
    returns 0.
    """
    if not health.ok or health.jobs is not None or health.active_jobs is None:
        return 0
    if quiet_seconds < QUIET_SECONDS:
        return 0
    return min(suspects, max(0, leases + suspects - health.active_jobs))


def _proof(suspect: Suspect, health: Health) -> str | None:
    if suspect.boot_id and health.boot_id and health.boot_id != suspect.boot_id:
        return RESTARTED
    if suspect.was_refused and not health.boot_id and health.jobs is None:
        return REFUSED_BEFORE
    if not suspect.attempt_id:
        return "the server runs nothing" if health.jobs == frozenset() else None
    if suspect.follower_id and health.runs(suspect.follower_id) is not False:
        return None
    return absence_proof(health, suspect.attempt_id)
