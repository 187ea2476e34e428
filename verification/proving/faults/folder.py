"""A local folder as the store, while the pinned worker writes an output into it: its process is killed or
stopped in the middle of the file, or the disk is full there."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from artifacts.store.folder import TEMPORARY
from verification.proving.faults.base import Fault
from verification.proving.faults.store import OUTPUTS
from verification.proving.files import PART_BYTES

if TYPE_CHECKING:
    from verification.proving.recovery import Sign
    from verification.proving.state import Live
    from verification.proving.trial import Trial

_MOMENT_SECONDS = 60.0


class FolderFault(Fault):
    """Begins in the middle of a file that the pinned worker writes; it is over when every job with a file
    that was accepted before the repair has ended."""

    bound_seconds, hold_seconds, runs_once = 45.0, 10.0, "all"

    def __init__(self) -> None:
        self._moment_reached = False

    def skip(self, trial: Trial) -> str:
        if super().skip(trial) or trial.seaweed or trial.pinned is None:
            return super().skip(trial) or "its store is no local folder of the trial"
        return "" if sys.platform == "linux" else "only Linux lets one process limit another's files"

    def play(self, trial: Trial) -> None:
        trial.feeder.release(OUTPUTS, with_outputs=True)
        pid, folder = _worker(trial), trial.artifact_folder / TEMPORARY
        until = time.monotonic() + _MOMENT_SECONDS
        while not self._moment_reached and time.monotonic() < until:
            if not _grows(folder):
                time.sleep(0.0005)
                continue
            os.kill(pid, signal.SIGSTOP)  # it stands still for the look
            self._moment_reached = _grows(folder)
            if not self._moment_reached:
                os.kill(pid, signal.SIGCONT)
        self.inflict(pid)

    def inflict(self, pid: int) -> None:
        """Begin the fault for the worker, which is stopped. pid: of the worker."""

    def mend(self, trial: Trial) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(_worker(trial), signal.SIGCONT)

    def signs(self, trial: Trial) -> Mapping[str, Sign]:
        state = trial.state
        assert state is not None
        return {"jobs with files end": state.ended_with_files}

    def wrongs(self, trial: Trial, affected: Sequence[Live]) -> list[str]:
        moment = f"no output was in the middle of its file within {_MOMENT_SECONDS:.0f} s"
        return [] if self._moment_reached else [moment]


class StopWriter(FolderFault):
    """SIGSTOP for the pinned worker in the middle of an output."""

    name = "stop_writer"
    expected = "the worker stands still for 10 s in the middle of an output: no object is half"


class KillWriter(FolderFault):
    """SIGKILL for the pinned worker in the middle of an output."""

    name = "kill_writer"
    expected = "the worker dies in the middle of an output, and is back after 10 s: the run is tried again"

    def inflict(self, pid: int) -> None:
        os.kill(pid, signal.SIGKILL)

    def mend(self, trial: Trial) -> None:
        assert trial.pinned is not None
        trial.pinned.stop(5.0)
        trial.start_pinned()


class FullFolder(FolderFault):
    """The worker can write no file longer than a part, as on a disk that fills up during an output."""

    name = "full_folder"
    expected = (
        "there is room for a part of an output only, for 10 s: it waits in the worker, and no object is half"
    )

    def inflict(self, pid: int) -> None:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (PART_BYTES, resource.RLIM_INFINITY))
        os.kill(pid, signal.SIGCONT)

    def mend(self, trial: Trial) -> None:
        with contextlib.suppress(ProcessLookupError):
            limits = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
            resource.prlimit(_worker(trial), resource.RLIMIT_FSIZE, limits)


def _worker(trial: Trial) -> int:
    assert trial.pinned is not None
    return trial.pinned.pid


def _grows(folder: Path) -> bool:
    """Return True if an unfinished file of an output is there. Clients' files are shorter."""
    with contextlib.suppress(FileNotFoundError), os.scandir(folder) as found:
        return any(one.stat().st_size > 1024 * 1024 for one in found)
    return False
