"""A Redis under Sentinel: its master killed, hung, paused, cut off, or replaced by an outdated replica."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

from verification.proving.faults.base import wait
from verification.proving.faults.redis import RedisFault

if TYPE_CHECKING:
    from verification.proving.sentinel import SentinelValkeys
    from verification.proving.trial import Trial

STALE_SECONDS = 5.0


class SentinelFault(RedisFault):
    """A fault of the master. It recovers while the old master is still away, by the Sentinels' promotion."""

    bound_seconds, runs_once = 25.0, "all"
    recovers_while_on = True
    settle_seconds = 60.0

    def __init__(self) -> None:
        self.master = ""

    def skip(self, trial: Trial) -> str:
        missing = "" if trial.sentinel is not None else "its Redis has no Sentinel of the trial's own"
        return super().skip(trial) or missing

    def play(self, trial: Trial) -> None:
        valkeys = valkeys_of(trial)
        self.master = valkeys.master
        self.inflict(trial, valkeys)

    def mend(self, trial: Trial) -> None:
        if self.master:
            self.repair(trial, valkeys_of(trial))

    def is_over(self, trial: Trial) -> bool:
        return valkeys_of(trial).is_replicating()

    def inflict(self, trial: Trial, valkeys: SentinelValkeys) -> None:
        """Start the fault. valkeys: master, replica and Sentinels of the trial."""
        raise NotImplementedError

    def repair(self, trial: Trial, valkeys: SentinelValkeys) -> None:
        raise NotImplementedError


def valkeys_of(trial: Trial) -> SentinelValkeys:
    """Return the trial's Valkeys behind Sentinel; call it only in a trial with Sentinel."""
    assert trial.sentinel is not None
    return trial.sentinel


class KillMaster(SentinelFault):
    name = "kill_master"
    expected = "the master is killed: the promoted one is a new run, its index is rebuilt, running jobs go on"

    def inflict(self, trial: Trial, valkeys: SentinelValkeys) -> None:
        valkeys.servers[self.master].kill()

    def repair(self, trial: Trial, valkeys: SentinelValkeys) -> None:
        valkeys.servers[self.master].start()


class HangMaster(SentinelFault):
    name = "hang_master"
    expected = "the master hangs: clients switch to the promoted one; later it follows as a replica"

    def inflict(self, trial: Trial, valkeys: SentinelValkeys) -> None:
        valkeys.send(self.master, signal.SIGSTOP)

    def repair(self, trial: Trial, valkeys: SentinelValkeys) -> None:
        valkeys.send(self.master, signal.SIGCONT)


class PauseMaster(HangMaster):
    """Longer than any client's time-out, shorter than the Sentinels'."""

    name = "pause_master"
    expected = (
        "the master hangs for 1.8 s and stays master: no connection gets the answer to an earlier command"
    )
    bound_seconds, hold_seconds = 10.0, 1.8
    recovers_while_on = False


class PartitionMaster(SentinelFault):
    name = "partition_master"
    expected = "the master lives but is unreachable: the promoted one takes over, no job runs twice"

    def inflict(self, trial: Trial, valkeys: SentinelValkeys) -> None:
        assert trial.proxies is not None
        trial.proxies.silence(self.master)

    def repair(self, trial: Trial, valkeys: SentinelValkeys) -> None:
        assert trial.proxies is not None
        trial.proxies.heal(self.master)


class PromoteStale(SentinelFault):
    name = "promote_stale"
    expected = "the promoted replica missed the last 5 s: its index is not trusted, but rebuilt"
    bound_seconds = 35.0

    def inflict(self, trial: Trial, valkeys: SentinelValkeys) -> None:
        """Stop the replica, write for a while, kill the master, and start the replica with its old data."""
        replica = valkeys.servers[valkeys.replica]
        replica.kill()
        wait(trial, STALE_SECONDS)
        valkeys.servers[self.master].kill()
        replica.start()

    def repair(self, trial: Trial, valkeys: SentinelValkeys) -> None:
        valkeys.servers[self.master].start()
