"""The size of one seed."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Size:
    """Numbers of jobs, faults, runs of workflows, schedules, schedules that people change beside them, and
    jobs with files. names: the faults to use; empty: all. keeps_history: also for good seeds."""

    jobs: int = 40
    faults: int = 20
    names: tuple[str, ...] = ()
    keeps_history: bool = False
    runs: int = 0
    schedules: int = 0
    edited: int = 0
    files: int = 0

    @property
    def fault_seconds(self) -> float:
        """The time within which faults begin; it grows with their number, so that their density stays the
        same."""
        return 2.0 * self.faults

    @property
    def submit_seconds(self) -> float:
        """The time within which jobs are submitted: faster than the fleet can run them."""
        return 0.625 * self.jobs
