"""The S3 server of the store of artifacts: killed, stopped, slow, cut off, full, also at chosen moments of an
output that a worker writes in parts. `--store s3` only: a local folder is hit with the web process, the disk
and the pinned worker (`kill_web`, `stop_web`, `disk_full`, `folder`)."""

from __future__ import annotations

import contextlib
import resource
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from verification.proving.faults.base import Fault

if TYPE_CHECKING:
    from verification.proving.recovery import Sign
    from verification.proving.seaweed import OwnSeaweed
    from verification.proving.state import Live
    from verification.proving.trial import Trial

ROUTE = "store"
SLOW_SECONDS = 0.7
"""Delay of each piece of bytes, in each direction; a request is several pieces."""


class StoreFault(Fault):
    """Files are on their way when it begins, and more are sent while it lasts; it is over when the store
    answers, no upload waits and every job with a file that was accepted before its repair has ended."""

    bound_seconds, hold_seconds, runs_once, jobs_with_files = 30.0, 20.0, "all", 8

    def skip(self, trial: Trial) -> str:
        return super().skip(trial) or (
            "" if trial.seaweed else "its store is a local folder: give --store s3"
        )

    def play(self, trial: Trial) -> None:
        self.inflict(trial, seaweed_of(trial))

    def mend(self, trial: Trial) -> None:
        self.repair(trial, seaweed_of(trial))

    def inflict(self, trial: Trial, seaweed: OwnSeaweed) -> None:
        """Start the fault."""
        raise NotImplementedError

    def repair(self, trial: Trial, seaweed: OwnSeaweed) -> None:
        """End it. Called once."""
        raise NotImplementedError

    def signs(self, trial: Trial) -> Mapping[str, Sign]:
        state = trial.state
        assert state is not None
        return {
            "the store answers": lambda since: seaweed_of(trial).answers(),
            "no upload waits": lambda since: trial.feeder.counts()["uploads"] == 0,
            "jobs with files end": state.ended_with_files,
        }


def seaweed_of(trial: Trial) -> OwnSeaweed:
    """Return the trial's S3 server; call it only in a trial with one."""
    assert trial.seaweed is not None
    return trial.seaweed


class KillStore(StoreFault):
    name = "kill_store"
    expected = (
        "the store dies and is back after 20 s with its files: uploads and results wait, no object is half"
    )

    def inflict(self, trial: Trial, seaweed: OwnSeaweed) -> None:
        seaweed.kill()

    def repair(self, trial: Trial, seaweed: OwnSeaweed) -> None:
        if not seaweed.is_running:
            seaweed.start()


class StopStore(StoreFault):
    name = "stop_store"
    expected = "the store hangs for 20 s with open connections: uploads and results wait, other jobs run"

    def inflict(self, trial: Trial, seaweed: OwnSeaweed) -> None:
        seaweed.send(signal.SIGSTOP)

    def repair(self, trial: Trial, seaweed: OwnSeaweed) -> None:
        seaweed.send(signal.SIGCONT)


class SlowStore(StoreFault):
    name = "slow_store"
    expected = "every piece of bytes to and from the store is 0.7 s late for 20 s: other jobs are not slower"

    def inflict(self, trial: Trial, seaweed: OwnSeaweed) -> None:
        assert trial.proxies is not None
        trial.proxies.slow(ROUTE, SLOW_SECONDS)

    def repair(self, trial: Trial, seaweed: OwnSeaweed) -> None:
        assert trial.proxies is not None
        trial.proxies.heal(ROUTE)


class CutStore(StoreFault):
    name = "cut_store"
    expected = "every connection to the store is reset, and new ones are refused for 20 s"

    def inflict(self, trial: Trial, seaweed: OwnSeaweed) -> None:
        assert trial.proxies is not None
        trial.proxies.close(ROUTE)

    def repair(self, trial: Trial, seaweed: OwnSeaweed) -> None:
        assert trial.proxies is not None
        trial.proxies.heal(ROUTE)


class FullStore(StoreFault):
    """The store can write to no file, as on a full disk (RLIMIT_FSIZE). Then it is restarted, as by an
    operator who has made room: the index of SeaweedFS takes no writes after one that failed."""

    name = "full_store"
    expected = "the store's disk is full for 20 s, then it is restarted: uploads and results wait"

    def skip(self, trial: Trial) -> str:
        here = sys.platform == "linux"
        return super().skip(trial) or ("" if here else "only Linux lets one process limit another's files")

    def inflict(self, trial: Trial, seaweed: OwnSeaweed) -> None:
        with contextlib.suppress(ProcessLookupError):
            resource.prlimit(seaweed.pid, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))

    def repair(self, trial: Trial, seaweed: OwnSeaweed) -> None:
        seaweed.kill()
        seaweed.start()


class Moment(NamedTuple):
    """A moment of an output's way to the store. request: that is held (regular expression), once `forwards`
    bytes of it have been forwarded. Clients' parts are under other keys."""

    name: str
    when: str
    request: str
    forwards: int


_PART_2 = r"PUT /[^ /]+/a/[^ ]*partNumber=2[& ]"
MOMENTS = (
    Moment("in_part", "in the middle of a part", _PART_2, 1024 * 1024),
    Moment("between_parts", "between two parts", _PART_2, 0),
    Moment("completing", "at the completing call", r"POST /[^ /]+/a/[^ ]*uploadId=", 0),
)
OUTPUTS = 3
"""Jobs of the pinned worker that save a file in parts when the store fails."""
_MOMENT_SECONDS = 60.0


class AtMoment(StoreFault):
    """A fault of the store that begins while a request of an output in parts is held in the proxy, and meets
    the rest of this request."""

    moment: ClassVar[Moment]
    hold_seconds, jobs_with_files = 10.0, 0

    def __init__(self) -> None:
        self._moment_reached = False

    def play(self, trial: Trial) -> None:
        assert trial.proxies is not None
        trial.proxies.hold(ROUTE, self.moment.request, self.moment.forwards)
        trial.feeder.release(OUTPUTS, with_outputs=True)
        until = time.monotonic() + _MOMENT_SECONDS
        while not (came := trial.proxies.held(ROUTE) > 0) and time.monotonic() < until:
            trial.check()
            time.sleep(0.02)
        self._moment_reached = came
        super().play(trial)
        trial.proxies.forward_held(ROUTE)

    def mend(self, trial: Trial) -> None:
        assert trial.proxies is not None
        trial.proxies.forward_held(ROUTE)
        super().mend(trial)

    def wrongs(self, trial: Trial, affected: Sequence[Live]) -> list[str]:
        moment = f"no output was {self.moment.when} within {_MOMENT_SECONDS:.0f} s"
        return [*super().wrongs(trial, affected), *([] if self._moment_reached else [moment])]


def _at_moments(*faults: type[StoreFault]) -> tuple[type[StoreFault], ...]:
    return tuple(
        type(
            f"{fault.__name__}{moment.name.title().replace('_', '')}",
            (AtMoment, fault),
            {
                "__doc__": f"`{fault.name}` {moment.when} of a worker's output.",
                "name": f"{fault.name}_{moment.name}",
                "expected": f"the same {moment.when} of a worker's output, for 10 s: no object is half",
                "moment": moment,
            },
        )
        for fault in faults
        for moment in MOMENTS
    )


STORE_MOMENTS = _at_moments(KillStore, StopStore, SlowStore, FullStore)
