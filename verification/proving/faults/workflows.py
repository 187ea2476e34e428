"""The process that advances runs of workflows: killed while many are under way."""

from __future__ import annotations

import signal
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from verification.proving.faults.processes import ProcessFault

if TYPE_CHECKING:
    from verification.proving.recovery import Sign
    from verification.proving.trial import Trial

RUNS = 12
_BEGIN_SECONDS = 10.0


class KillWorkflows(ProcessFault):
    """SIGKILL while runs are under way."""

    name = "kill_workflows"
    expected = "runs wait until a sweep or its successor goes on with them; no node starts twice or is lost"
    process, number = "callbacks", signal.SIGKILL
    bound_seconds, mends_itself = 15.0, True

    def play(self, trial: Trial) -> None:
        trial.feeder.release_runs(RUNS)
        until = time.monotonic() + _BEGIN_SECONDS
        while time.monotonic() < until and trial.state and (trial.state.live_runs() or 0) < RUNS // 2:
            time.sleep(0.05)
        super().play(trial)

    def signs(self, trial: Trial) -> Mapping[str, Sign]:
        state = trial.state
        return {"runs go on": lambda since: state is None or state.advanced_since(since)}
