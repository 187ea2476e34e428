"""Valkey, and the network to it."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from verification.proving import own_redis
from verification.proving.faults.base import Fault

if TYPE_CHECKING:
    from verification.proving.recovery import Sign
    from verification.proving.state import Live
    from verification.proving.trial import Trial

ROUTE = "valkey"


class RedisFault(Fault):
    """Running jobs are not affected, so that new ones must show that it is over."""

    def signs(self, trial: Trial) -> Mapping[str, Sign]:
        state = trial.state
        assert state is not None
        return {
            "runs begin": trial.runs_begin_since,
            "each waiting job has a ticket": lambda since: state.all_queued(),
        }


class OwnValkeyFault(RedisFault):
    """Needs a Valkey that the trial started."""

    def skip(self, trial: Trial) -> str:
        return super().skip(trial) or ("" if trial.valkey else "its Valkey is not the trial's own")


class ProcessOfValkeyFault(RedisFault):
    """Needs the pid of a Valkey: the trial's own, or one that `up` starts and restarts."""

    def skip(self, trial: Trial) -> str:
        return super().skip(trial) or ("" if trial.pids().get("valkey") else "up.json names no valkey")

    def send(self, trial: Trial, number: signal.Signals) -> None:
        os.kill(trial.pids()["valkey"], number)


def start_again(trial: Trial) -> None:
    """Restart the trial's own Valkey; another one's supervisor does it."""
    if trial.valkey is not None and not trial.valkey.is_running:
        trial.valkey.start()


class KillValkey(ProcessOfValkeyFault):
    name = "kill_valkey"
    expected = (
        "it is away for 3 s and comes back with its file; running jobs go on, at most a second of its writes "
        "is missing"
    )
    bound_seconds, hold_seconds, runs_once = 10.0, 3.0, "all"

    def play(self, trial: Trial) -> None:
        self.send(trial, signal.SIGKILL)
        if trial.valkey is not None:
            trial.valkey.kill()  # and wait for its end

    def mend(self, trial: Trial) -> None:
        start_again(trial)


class EmptyValkey(OwnValkeyFault):
    name = "empty_valkey"
    expected = (
        "it is away for 3 s and comes back empty; the index is rebuilt from the database, running jobs keep "
        "their slots"
    )
    bound_seconds, hold_seconds, runs_once = 10.0, 3.0, "all"

    def play(self, trial: Trial) -> None:
        assert trial.valkey is not None
        trial.valkey.kill()
        shutil.rmtree(trial.valkey.folder / "appendonlydir", ignore_errors=True)

    def mend(self, trial: Trial) -> None:
        start_again(trial)


class StopValkey(ProcessOfValkeyFault):
    name = "stop_valkey"
    expected = "no slot is leased; running jobs continue and their leases are extended by the gap"
    bound_seconds, hold_seconds, runs_once = 10.0, 10.0, "all"

    def play(self, trial: Trial) -> None:
        self.send(trial, signal.SIGSTOP)

    def mend(self, trial: Trial) -> None:
        self.send(trial, signal.SIGCONT)


class Flush(RedisFault):
    """Possible on any Valkey: the address is enough."""

    name = "flush"
    expected = "the index is rebuilt; within tenant and priority jobs start in their old order"
    bound_seconds, runs_once, backlog = 15.0, "all", True

    def __init__(self) -> None:
        self.waiting = 0

    def play(self, trial: Trial) -> None:
        assert trial.state is not None
        self.waiting = trial.state.waiting() or 0
        trial.flushed_at = time.time()
        own_redis.flush(trial.state.redis_url)

    def notes(self, trial: Trial) -> list[str]:
        return [f"{self.waiting} jobs were waiting"]


class FullValkey(RedisFault):
    name = "full_valkey"
    expected = "Redis is at its maxmemory for 20 s: waiting jobs still run, submits are accepted"
    bound_seconds, hold_seconds, runs_once = 35.0, 20.0, "all"

    def skip(self, trial: Trial) -> str:
        many = "its Redis is a cluster: each node has a limit of its own" if trial.cluster is not None else ""
        return super().skip(trial) or many

    def __init__(self) -> None:
        self.played_at = 0.0
        self.no_run_began = False
        self.before: str | None = None

    def play(self, trial: Trial) -> None:
        assert trial.state is not None
        self.before = own_redis.fill_up(trial.state.redis_url)
        self.played_at = time.time()

    def mend(self, trial: Trial) -> None:
        assert trial.state is not None
        left = trial.state.tickets({gpu.pool for gpu in trial.fleet.gpus})
        self.no_run_began = left > 0 and not trial.runs_begin_since(self.played_at + 2.0)
        if self.before is not None:
            own_redis.set_max_memory(trial.state.redis_url, self.before)

    def wrongs(self, trial: Trial, affected: Sequence[Live]) -> list[str]:
        return ["no run began while Redis was full, though jobs waited there"] if self.no_run_began else []


class CutConnections(OwnValkeyFault):
    name = "cut_connections"
    expected = "every connection to Valkey is reset; each job runs once"
    bound_seconds, runs_once = 3.0, "all"

    def play(self, trial: Trial) -> None:
        assert trial.proxies is not None
        trial.proxies.cut(ROUTE)


class BlackHole(OwnValkeyFault):
    name = "black_hole"
    expected = "no packet reaches Valkey for 40 s, without a reset; submits are still accepted"
    bound_seconds, hold_seconds = 5.0, 40.0

    def play(self, trial: Trial) -> None:
        assert trial.proxies is not None
        trial.proxies.silence(ROUTE)

    def mend(self, trial: Trial) -> None:
        assert trial.proxies is not None
        trial.proxies.heal(ROUTE)
