"""What a GPU server's answer proves about attempts that we let go of. Pure: facts in, proofs out.

One rule for whoever asks: a sender about its own attempt (`health.evidence_for`), the quarantine sweep about
every slot that is out of use.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from gpus.runners.base import Health

QUIET_SECONDS = 5.0
"""Counts are trusted only if no lease of the server changed from this long before the probe to its answer."""
STEADY_SECONDS = 20.0
"""Only after so long without a change is a lease counted as a run: the run may have ended, its worker be dead
(for a lease time, 15 s by default) or not have polled the end yet. Until then every running job may be a
suspect's."""
SETTLE_SECONDS = 1.0
"""A request may still stand in the server's accept queue just after its sender let go of it."""

RESTARTED = "the server restarted"
REFUSED_BEFORE = "nothing listened there, and now the server answers: it restarted"


@dataclass(frozen=True, slots=True)
class Suspect:
    """A quarantined slot. boot_id: the server's when the attempt was sent, empty if unknown. follower_id:
    what may have begun behind the attempt, if anything. was_refused: nothing listened at the server's address
    since."""

    key: int
    attempt_id: str
    boot_id: str
    since: datetime
    until: datetime
    follower_id: str = ""
    was_refused: bool = False


def is_settled(seconds: float) -> bool:
    """Whether an answer may prove something about a request whose sender let go of it so long ago."""
    return seconds >= SETTLE_SECONDS


def outlived(suspects: Sequence[Suspect], now: datetime) -> dict[int, str]:
    """Those whose model can't run any longer, whatever their server says."""
    return {one.key: "the model's run limit has passed" for one in suspects if now >= one.until}


def answered(suspects: Sequence[Suspect], health: Health, asked_at: datetime) -> dict[int, str]:
    """By what the server says of these attempts, or of its own start."""
    if not health.ok:
        return {}
    settled = [
        one for one in suspects if is_settled((asked_at - one.since).total_seconds() - health.age_seconds)
    ]
    proofs = {one.key: _proof(one, health) for one in settled}
    return {key: proof for key, proof in proofs.items() if proof}


def absence(health: Health, attempt_id: str) -> str | None:
    """Its list of jobs, if it has one, without the attempt."""
    return "the server does not run it" if health.runs(attempt_id) is False else None


def counted(
    suspects: Sequence[Suspect],
    health: Health,
    *,
    leases: int,
    quiet_seconds: float,
    steady_seconds: float = STEADY_SECONDS,
) -> dict[int, str]:
    """By the number of running jobs alone: as many of the suspects, the oldest first, as must be free."""
    steady = leases if quiet_seconds >= steady_seconds else 0
    spare = spare_by_count(health, suspects=len(suspects), leases=steady, quiet_seconds=quiet_seconds)
    oldest = sorted(suspects, key=lambda one: one.since)[:spare]
    proof = f"{health.active_jobs} running, {leases} leased and {len(suspects)} quarantined"
    return {one.key: proof for one in oldest}


def spare_by_count(health: Health, *, suspects: int, leases: int, quiet_seconds: float) -> int:
    """How many of the suspects can't be among the jobs that the server counts.

    leases: that surely run on the server, beside the suspects. quiet_seconds: since one of its leases
    changed, less what the probe took. A list of jobs says more than a count: a count beside one says
    nothing.
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
    return absence(health, suspect.attempt_id)
