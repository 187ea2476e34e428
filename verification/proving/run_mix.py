"""The runs of workflows in the load: each follows from the seed and its number alone. Pure."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

WORKFLOW, LAST_NODE = "film", "last"
JOBS = 4
"""Of one run."""
SHARE_OF_JOBS = 0.2
"""Share of all jobs that belong to runs."""
_SHARE = SHARE_OF_JOBS / (JOBS - SHARE_OF_JOBS * (JOBS - 1))
_CANCELLED = 0.05
_CALLED_BACK = 0.5
_RESTARTED = 0.15
"""Share of runs with a callback that their client restarts once they have ended."""


@dataclass(frozen=True, slots=True)
class PlannedRun:
    """A run of the load.

    key: its Idempotency-Key. cancel_after: seconds after its acceptance; None: never. restarted: its client
    runs its last node once more after its end, which is a second round."""

    key: str
    number: int
    tenant: str
    inputs: Mapping[str, Any]
    cancel_after: float | None = None
    callback: bool = False
    restarted: bool = False


def definition(prefix: str) -> dict[str, Any]:
    """Return the definition that all runs have: a job, two in parallel, and one with the results of all."""

    def job(model: str, **payload: Any) -> dict[str, Any]:
        common = {"seconds": {"$ref": "inputs.seconds"}, "number": {"$ref": "inputs.number"}}
        return {"model": f"{prefix}-{model}", "payload": {**common, **payload}}

    return {
        "nodes": {
            "first": job("image"),
            "both": {
                **job("video", index={"$ref": "index"}, first={"$ref": "first.attempt"}),
                "map": {"count": 2},
            },
            LAST_NODE: job("image", all={"$ref": "both[*].attempt"}, first={"$ref": "first.attempt"}),
        },
        "output": {"attempt": {"$ref": "last.attempt"}},
    }


def planned_run(
    number: int, *, seed: int, prefix: str, tenants: Sequence[str], shorten: float = 1.0
) -> PlannedRun:
    """Return a run. shorten: divides the duration of its jobs."""
    chance = random.Random(f"{seed} run {number}")
    callback = chance.random() < _CALLED_BACK
    return PlannedRun(
        key=f"{prefix}-run-{number}",
        number=number,
        tenant=chance.choice(list(tenants)),
        inputs={"seconds": round(chance.uniform(0.05, 0.4) / shorten, 3), "number": number},
        cancel_after=round(chance.uniform(0.0, 2.0), 3) if chance.random() < _CANCELLED else None,
        callback=callback,
        restarted=callback and chance.random() < _RESTARTED,
    )


def has_run(number: int, seed: int) -> bool:
    """Return True if a run is started beside the job of this number."""
    return random.Random(f"{seed} has run {number}").random() < _SHARE / (1.0 - _SHARE)
