"""Callback receivers that are down."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from verification.proving.faults.base import Fault

if TYPE_CHECKING:
    from verification.proving.recovery import Sign
    from verification.proving.trial import Trial


class ReceiverDown(Fault):
    name = "receiver_down"
    expected = "callbacks are retried by their schedule, first after 5 s, under the same id"
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
