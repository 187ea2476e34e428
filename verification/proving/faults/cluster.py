"""A Redis Cluster: the fleet's hash slot moves to another node under load."""

from __future__ import annotations

from typing import TYPE_CHECKING

from verification.proving.faults.redis import RedisFault

if TYPE_CHECKING:
    from verification.proving.trial import Trial


class MoveSlot(RedisFault):
    name = "move_slot"
    expected = (
        "the fleet's keys move to another node: no job starts meanwhile, then the index is rebuilt there"
    )
    bound_seconds, runs_once = 15.0, "all"

    def __init__(self) -> None:
        self.moved = 0

    def skip(self, trial: Trial) -> str:
        missing = "" if trial.cluster is not None else "its Redis is no cluster of the trial's own"
        return super().skip(trial) or missing

    def play(self, trial: Trial) -> None:
        assert trial.cluster is not None
        self.moved = trial.cluster.move_fleet("main")

    def notes(self, trial: Trial) -> list[str]:
        return [f"{self.moved} keys moved"]
