"""The runs of workflows in the load: each follows from the seed and its number alone. Pure."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from verification.proving.run_kinds import FAILS, FILM, KINDS

WORKFLOW = FILM.name
JOBS = 4
"""Of one run; some kinds have fewer."""
SHARE_OF_JOBS = 0.2
"""Share of all jobs that would belong to runs if each run had `JOBS`; it is about a sixth."""
_SHARE = SHARE_OF_JOBS / (JOBS - SHARE_OF_JOBS * (JOBS - 1))
_CANCELLED = 0.05
_CALLED_BACK = 0.5
_RESTARTED = 0.15
"""Share of the films with a callback that their client restarts once they have ended, and of the runs that
fail."""


@dataclass(frozen=True, slots=True)
class PlannedRun:
    """A run of the load.

    key: its Idempotency-Key. cancel_after: seconds after its acceptance; None: never. restarted: its client
    runs its last node, or what failed, once more after its end, which is a second round. kind: of `KINDS`."""

    key: str
    number: int
    tenant: str
    inputs: Mapping[str, Any]
    cancel_after: float | None = None
    callback: bool = False
    restarted: bool = False
    kind: str = FILM.name


def planned_run(
    number: int, *, seed: int, prefix: str, tenants: Sequence[str], shorten: float = 1.0
) -> PlannedRun:
    """Return a run. shorten: divides the duration of its jobs."""
    chance = random.Random(f"{seed} run {number}")
    callback = chance.random() < _CALLED_BACK
    kinds = list(KINDS.values())
    (kind,) = random.Random(f"{seed} kind of run {number}").choices(kinds, [one.weight for one in kinds])
    return PlannedRun(
        key=f"{prefix}-run-{number}",
        number=number,
        tenant=chance.choice(list(tenants)),
        inputs={"seconds": round(chance.uniform(0.05, 0.4) / shorten, 3), "number": number},
        cancel_after=round(chance.uniform(0.0, 2.0), 3)
        if chance.random() < _CANCELLED and kind is FILM
        else None,
        callback=callback,
        restarted=kind in (FILM, FAILS) and callback and chance.random() < _RESTARTED,
        kind=kind.name,
    )


def has_run(number: int, seed: int) -> bool:
    """Return True if a run is started beside the job of this number."""
    return random.Random(f"{seed} has run {number}").random() < _SHARE / (1.0 - _SHARE)
