"""Callback receivers that are away, and a worker whose clock is wrong."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from .base import Fault

if TYPE_CHECKING:
    from ..children import Child
    from ..recovery import Sign
    from ..state import Live
    from ..trial import Trial

SKEW_SECONDS = 300.0


class ReceiverDown(Fault):
    name = "receiver_down"
    expected = "callbacks come again by their schedule, the first time after 5 s, under the same id"
    bound_seconds, hold_seconds, runs_once = 15.0, 4.0, "all"

    def skip(self, trial: Trial) -> str:
        return ""

    def play(self, trial: Trial) -> None:
        trial.receiver.kill()

    def mend(self, trial: Trial) -> None:
        if not trial.receiver.is_running:
            trial.receiver.start()

    def signs(self, trial: Trial) -> Mapping[str, Sign]:
        return {"a callback arrives": trial.called_back_since}


class ClockSkew(Fault):
    """One more GPU worker, whose wall clock is five minutes ahead."""

    name = "clock_skew"
    expected = "it works like the others: no deadline passes early, no lease is lost"
    bound_seconds, hold_seconds, runs_once = 10.0, 15.0, "all"

    def __init__(self) -> None:
        self._worker: Child | None = None
        self._done = 0
        self._had_work = False

    def play(self, trial: Trial) -> None:
        self._worker = trial.start_worker(
            "skewed_worker", DISPATCHER_PROVE_CLOCK_SKEW_SECONDS=str(SKEW_SECONDS)
        )

    def mend(self, trial: Trial) -> None:
        if self._worker is not None and trial.state is not None:
            self._done = trial.state.completed_by(self._worker.pid)
            self._had_work = trial.state.waiting() != 0
            self._worker.stop(30.0)
            self._worker = None

    def wrongs(self, trial: Trial, affected: Sequence[Live]) -> list[str]:
        # at the end of a trial the others may leave it nothing to do
        idle = self._had_work and not self._done
        return ["the worker with the wrong clock completed nothing"] if idle else []

    def notes(self, trial: Trial) -> list[str]:
        return [f"the worker with the wrong clock completed {self._done} attempts"]
