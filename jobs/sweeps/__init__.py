"""Periodic repairs, each for one symptom: `run_sweep(name)`, or `run_sweep("tick")` for all that are due."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

from jobs.sweeps.names import TICK

if TYPE_CHECKING:
    from jobs.sweeps.runner import Runner

__all__ = ["TICK", "run_sweep", "sweep_ages"]


def run_sweep(name: str) -> dict[str, Any]:
    """Runs one sweep, or with `tick` every one that is due; what they found, by name. A slow one that a tick
    started in a thread is missing. Raises KeyError for an unknown name."""
    runner = _runner()
    if name == TICK:
        return {one: _as_dict(count) for one, count in runner.tick().items()}
    count = runner.run(name)
    return {} if count is None else {name: _as_dict(count)}


def sweep_ages() -> dict[str, float]:
    """Seconds since each sweep's last run, by name; `tick` is beat's own."""
    from jobs.ports import production_ports
    from jobs.sweeps import base

    return base.sweep_ages(production_ports().clock.now())


@lru_cache(maxsize=1)
def _runner() -> Runner:
    # imported here: the package is imported while Django still loads its models
    from jobs.ports import production_ports
    from jobs.sweeps.registry import Sweeps
    from jobs.sweeps.runner import Runner

    return Runner(production_ports(), Sweeps().entries)


def _as_dict(count: Any) -> dict[str, Any]:
    return {
        "looked": count.looked,
        "repaired": count.repaired,
        "failed": count.failed,
        "notes": list(count.notes),
    }
