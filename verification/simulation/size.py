"""How much happens in one seed."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Size:
    """names: which faults; all where empty. keeps_history: also of good seeds."""

    jobs: int = 40
    faults: int = 20
    names: tuple[str, ...] = ()
    keeps_history: bool = False

    @property
    def fault_seconds(self) -> float:
        """Faults begin within this time; it grows with them, so that they lie equally dense."""
        return 2.0 * self.faults

    @property
    def submit_seconds(self) -> float:
        """Jobs come within this time: faster than the fleet can run them."""
        return 0.625 * self.jobs
