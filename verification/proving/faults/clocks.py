"""Wrong wall clocks of workers, beat and Redis, each in its own process."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

from verification.proving.faults.base import Fault
from verification.proving.faults.processes import KillWorker

if TYPE_CHECKING:
    from verification.proving.recovery import Sign
    from verification.proving.state import Live
    from verification.proving.trial import Trial

GRACE_SECONDS = 6.0
"""After a clock was set its processes may pause for this time; then everything must work."""


class ClockFault(Fault):
    """Sets the wall clock of some processes. word: of the command line of the processes whose clock is set
    (clocks.py). seconds: by how much."""

    word: ClassVar[str]
    seconds: ClassVar[float]
    bound_seconds, hold_seconds, runs_once = 10.0, 25.0, "all"

    def __init__(self) -> None:
        self.set_at = 0.0
        self.silent: list[str] = []

    def skip(self, trial: Trial) -> str:
        return super().skip(trial) or (trial.clocks.why_not if trial.clocks else "its processes are not ours")

    def play(self, trial: Trial) -> None:
        assert trial.clocks is not None
        trial.clocks.shift(self.word, self.seconds)
        self.set_at = time.time()

    def mend(self, trial: Trial) -> None:
        assert trial.clocks is not None
        since = self.set_at + GRACE_SECONDS
        self.silent = [name for name, works in self.signs(trial).items() if not works(since)]
        trial.clocks.shift(self.word, 0.0)

    def signs(self, trial: Trial) -> Mapping[str, Sign]:
        """Return what works while the clock is wrong, and after it was corrected."""
        return {"runs begin": trial.runs_begin_since}

    def wrongs(self, trial: Trial, affected: Sequence[Live]) -> list[str]:
        return [
            f"with the clock off by {self.seconds:+.0f} s this did not happen: {one}" for one in self.silent
        ]


class WorkersAhead(ClockFault):
    name = "clock_ahead_worker"
    expected = "all GPU workers' hosts are two minutes ahead: they take wakes and run jobs as always"
    word, seconds = "gpu_worker", 120.0


class BeatBehind(ClockFault):
    name = "clock_behind_beat"
    expected = "beat's host is two minutes behind: its ticks still count as fresh, and sweeps run"
    word, seconds = "beat", -120.0

    def signs(self, trial: Trial) -> Mapping[str, Sign]:
        return {"sweeps run": trial.ticked_since, "runs begin": trial.runs_begin_since}


class SweepsAhead(BeatBehind):
    name = "clock_ahead_sweeps"
    expected = "the sweeps' host is five minutes ahead: no deadline passes early, no lease expires early"
    word, seconds = "sweeps", 300.0


class CallbacksBehind(ClockFault):
    name = "clock_behind_callbacks"
    expected = "the callbacks' host is an hour behind: callbacks leave in time"
    word, seconds = "callbacks", -3600.0

    def signs(self, trial: Trial) -> Mapping[str, Sign]:
        return {"a callback arrives": trial.called_back_since}


class RedisClockFault(ClockFault):
    """A wrong clock of the trial's own Valkey."""

    word = "valkey-server"

    def skip(self, trial: Trial) -> str:
        return super().skip(trial) or ("" if trial.valkey else "its Valkey is not the trial's own")


class RedisBack(RedisClockFault):
    name = "redis_clock_back"
    expected = "Redis' clock steps back by five minutes and a worker dies: its leases run out as always"
    bound_seconds, hold_seconds, runs_once = 25.0, 0.0, "polled"
    recovers_while_on = True
    longest_run_seconds = 19.0
    seconds = -300.0

    def __init__(self) -> None:
        super().__init__()
        self.killed = KillWorker()

    def skip(self, trial: Trial) -> str:
        return super().skip(trial) or self.killed.skip(trial)

    def play(self, trial: Trial) -> None:
        super().play(trial)
        self.killed.play(trial)

    def aims_at(self, trial: Trial, live: Live) -> bool:
        return self.killed.aims_at(trial, live)

    def affects(self, live: Live) -> bool:
        return self.killed.affects(live)

    def kills(self, live: Live) -> bool:
        return self.killed.kills(live)

    def is_over(self, trial: Trial) -> bool:
        return self.killed.is_over(trial)


class RedisAhead(RedisClockFault):
    name = "redis_clock_ahead"
    expected = "Redis' clock steps ahead by ten minutes and back: no deadline passes early, no lease expires"
    seconds = 600.0
    hold_seconds = 45.0  # longer than clocks take to notice
