"""The dispatcher's own processes: killed, stopped for longer than a lease, or terminated as by a deploy."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

from verification.proving.faults.base import Fault
from verification.proving.submit_answers import AWAY

if TYPE_CHECKING:
    from verification.proving.recovery import Sign
    from verification.proving.state import Live
    from verification.proving.trial import Trial


class ProcessFault(Fault):
    """Sends a signal to a process of the dispatcher. process: its name in up.json."""

    process: ClassVar[str]
    number: ClassVar[signal.Signals]
    runs_once = "all"

    def __init__(self) -> None:
        self.pid = 0

    def skip(self, trial: Trial) -> str:
        missing = "" if trial.system.pid(self.process) else f"up.json names no {self.process}"
        return super().skip(trial) or missing

    def play(self, trial: Trial) -> None:
        self.pid = trial.system.pid(self.process)
        if not self.pid:
            raise RuntimeError(f"there is no {self.process}")
        os.kill(self.pid, self.number)

    def mend(self, trial: Trial) -> None:
        if self.number is signal.SIGSTOP and self.pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGCONT)

    def aims_at(self, trial: Trial, live: Live) -> bool:
        return self.process != "gpu_worker" or f":{trial.system.pid(self.process)}:" in live.worker

    def affects(self, live: Live) -> bool:
        return self.process != "gpu_worker" or f":{self.pid}:" in live.worker

    def is_over(self, trial: Trial) -> bool:
        return self.is_back(trial) and (self.number is signal.SIGSTOP or not is_alive(self.pid))

    def is_back(self, trial: Trial) -> bool:
        """Return True if a successor runs, or a stopped process works again."""
        pid = trial.system.pid(self.process)
        return pid != 0 and (pid != self.pid or self.number is signal.SIGSTOP)

    def signs(self, trial: Trial) -> Mapping[str, Sign]:
        """Return signs of its successor's work: its own work before its exit is no proof."""
        works: dict[str, tuple[str, Sign]] = {
            "gpu_worker": ("a worker is back", lambda since: True),
            "web": ("it answers", lambda since: trial.web_answers()),
            "beat": ("sweeps run", trial.ticked_since),
            "sweeps": ("sweeps run", trial.ticked_since),
            "callbacks": ("a callback arrives", trial.called_back_since),
        }
        name, does = works[self.process]
        return {name: lambda since: self.is_back(trial) and does(since)}


def is_alive(pid: int) -> bool:
    """Return True if a process with this id exists."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


class KillWorker(ProcessFault):
    name = "kill_worker"
    expected = "polled runs are adopted and not run again, the others run again once their GPU is proven free"
    process, number = "gpu_worker", signal.SIGKILL
    bound_seconds, mends_itself, runs_once = 25.0, True, "polled"
    longest_run_seconds = 19.0

    def kills(self, live: Live) -> bool:
        return True


class StopWorker(ProcessFault):
    name = "stop_worker"
    expected = "its runs are taken over while it is stopped; after it resumes, its writes are refused"
    process, number = "gpu_worker", signal.SIGSTOP
    bound_seconds, runs_once = 25.0, "polled"
    recovers_while_on = True
    longest_run_seconds = 19.0

    def kills(self, live: Live) -> bool:
        return live.polled


class TermWorker(ProcessFault):
    name = "term_worker"
    expected = "a deploy: polled runs are handed over, the others finish; no run is lost"
    process, number = "gpu_worker", signal.SIGTERM
    bound_seconds, mends_itself = 5.0, True

    def kills(self, live: Live) -> bool:
        return live.polled

    def signs(self, trial: Trial) -> Mapping[str, Sign]:
        return {}  # the other worker takes over; the successor comes when the sync runs have finished


class KillWeb(ProcessFault):
    name = "kill_web"
    expected = "clients retry until it is back; runs go on"
    process, number = "web", signal.SIGKILL
    bound_seconds, mends_itself, submit_answers = 15.0, True, AWAY
    jobs_with_files = 4  # it serves the store, if that is a local folder


class StopWeb(KillWeb):
    """SIGSTOP for the web process."""

    name = "stop_web"
    number = signal.SIGSTOP
    bound_seconds, hold_seconds, mends_itself = 5.0, 20.0, False


class TermWeb(KillWeb):
    """SIGTERM for the web process."""

    name = "term_web"
    number = signal.SIGTERM


class KillBeat(ProcessFault):
    name = "kill_beat"
    expected = "repairs pause until it is back; runs and claims go on"
    process, number = "beat", signal.SIGKILL
    bound_seconds, mends_itself = 15.0, True


class StopBeat(KillBeat):
    name = "stop_beat"
    expected = "its supervisor detects the silence after 20 s and restarts it"
    number = signal.SIGSTOP
    bound_seconds = 40.0

    def mend(self, trial: Trial) -> None:
        """No effect: the supervisor must replace it."""

    def is_over(self, trial: Trial) -> bool:
        return self.is_back(trial)

    def is_back(self, trial: Trial) -> bool:
        return trial.system.pid(self.process) not in (0, self.pid)


class TermBeat(KillBeat):
    """SIGTERM for beat."""

    name = "term_beat"
    number = signal.SIGTERM


class KillSweeps(ProcessFault):
    name = "kill_sweeps"
    expected = "repairs pause until it is back; runs and claims go on"
    process, number = "sweeps", signal.SIGKILL
    bound_seconds, mends_itself = 15.0, True


class StopSweeps(KillSweeps):
    name = "stop_sweeps"
    expected = "repairs pause; afterwards no lease that its worker renewed counts as expired"
    number = signal.SIGSTOP
    bound_seconds, hold_seconds, mends_itself = 10.0, 20.0, False


class TermSweeps(KillSweeps):
    """SIGTERM for the sweeper."""

    name = "term_sweeps"
    number = signal.SIGTERM


class KillCallbacks(ProcessFault):
    name = "kill_callbacks"
    expected = "callbacks wait; a callback in flight is sent again within 75 s under the same id"
    process, number = "callbacks", signal.SIGKILL
    bound_seconds, mends_itself = 15.0, True


class StopCallbacks(KillCallbacks):
    """SIGSTOP for the callbacks worker."""

    name = "stop_callbacks"
    number = signal.SIGSTOP
    bound_seconds, hold_seconds, mends_itself = 10.0, 10.0, False


class TermCallbacks(KillCallbacks):
    """SIGTERM for the callbacks worker."""

    name = "term_callbacks"
    number = signal.SIGTERM
