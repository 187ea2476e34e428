"""The jobs of the load: each follows from the seed and its number alone. Pure."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

_MODELS = {"image": 45, "once": 5, "video": 35, "speech": 15}
_PRIORITIES = {5: 60, 2: 10, 8: 20, 4: 5, 1: 5}


@dataclass(frozen=True, slots=True)
class PlannedJob:
    """One job of the load.

    key: its Idempotency-Key. seconds: duration on the GPU. cancel_after: seconds after its acceptance; None:
    never. doubled: its client sends the request twice, with the same key."""

    key: str
    number: int
    tenant: str
    model: str
    priority: int
    seconds: float
    callback: bool
    cancel_after: float | None = None
    deadline_seconds: float | None = None
    doubled: bool = False

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def planned_job(
    number: int, *, seed: int, prefix: str, tenants: Sequence[str], shorten: float = 1.0
) -> PlannedJob:
    """Return a job; most take 50 to 500 ms, one in a hundred several seconds. shorten: divides these."""
    chance = random.Random(f"{seed} {number}")
    model = _weighted(chance, _MODELS)
    seconds = chance.uniform(2.0, 5.0) if chance.random() < 0.01 else chance.triangular(0.05, 0.5, 0.1)
    special = chance.random()
    return PlannedJob(
        key=f"{prefix}-{number}",
        number=number,
        tenant=chance.choice(list(tenants)),
        model=f"{prefix}-{model}",
        priority=_weighted(chance, _PRIORITIES),
        seconds=round(seconds / shorten, 3),
        callback=chance.random() < 0.3,
        cancel_after=round(chance.uniform(0.0, 3.0), 3) if special < 0.03 else None,
        deadline_seconds=round(chance.uniform(5.0, 120.0), 1) if 0.03 <= special < 0.06 else None,
        doubled=0.06 <= special < 0.11,
    )


def _weighted(chance: random.Random, weights: dict[Any, int]) -> Any:
    return chance.choices(list(weights), list(weights.values()))[0]
