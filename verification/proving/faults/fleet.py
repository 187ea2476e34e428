"""GPU servers that restart, hang, are cut off, answer late, or report wrongly."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

from verification.proving.faults.base import Fault

if TYPE_CHECKING:
    from verification.proving.fleet import Gpu
    from verification.proving.state import Live
    from verification.proving.trial import Trial


class ServerFault(Fault):
    """Affects one server of each pool, those behind the proxy. Possible without access to the dispatcher."""

    def __init__(self) -> None:
        self.servers: list[Gpu] = []

    def skip(self, trial: Trial) -> str:
        return ""

    def play(self, trial: Trial) -> None:
        self.servers = trial.fleet.behind_proxy
        for gpu in self.servers:
            self.inflict(trial, gpu)

    def mend(self, trial: Trial) -> None:
        for gpu in self.servers:
            self.repair(trial, gpu)

    def inflict(self, trial: Trial, gpu: Gpu) -> None:
        """Start the fault on one GPU server."""
        raise NotImplementedError

    def repair(self, trial: Trial, gpu: Gpu) -> None:
        """No effect by default."""

    def affects(self, live: Live) -> bool:
        return any(gpu.name == live.server for gpu in self.servers)


class RestartServer(ServerFault):
    name = "restart_server"
    expected = "the probe sees a new boot id: its slots are back, its jobs run elsewhere or again"
    bound_seconds = 10.0

    def inflict(self, trial: Trial, gpu: Gpu) -> None:
        assert gpu.child is not None
        gpu.child.kill()

    def repair(self, trial: Trial, gpu: Gpu) -> None:
        if gpu.child is None or not gpu.child.is_running():
            trial.fleet.begin(gpu)
            trial.fleet.wait_until_up(gpu)

    def kills(self, live: Live) -> bool:
        return True


class HangServer(ServerFault):
    name = "hang_server"
    expected = "its runs continue when it resumes; the other servers work meanwhile"
    bound_seconds, hold_seconds = 10.0, 15.0

    def inflict(self, trial: Trial, gpu: Gpu) -> None:
        assert gpu.child is not None
        gpu.child.send(signal.SIGSTOP)

    def repair(self, trial: Trial, gpu: Gpu) -> None:
        assert gpu.child is not None
        gpu.child.send(signal.SIGCONT)


class ServerConnectionFault(ServerFault):
    """Needs the trial's proxy in front of the servers."""

    def skip(self, trial: Trial) -> str:
        return "" if trial.proxies is not None else "its GPU servers stand behind no proxy"


class PartitionServer(ServerConnectionFault):
    name = "partition_server"
    expected = "no packet reaches it for 20 s; no job is sent to its slots that may still be busy"
    bound_seconds, hold_seconds = 10.0, 20.0

    def inflict(self, trial: Trial, gpu: Gpu) -> None:
        assert trial.proxies is not None
        trial.proxies.silence(gpu.name)

    def repair(self, trial: Trial, gpu: Gpu) -> None:
        assert trial.proxies is not None
        trial.proxies.heal(gpu.name)


class LateServer(ServerFault):
    name = "late_server"
    expected = "every answer comes 2 s late; no request is sent twice"
    bound_seconds, hold_seconds, runs_once = 10.0, 15.0, "all"

    def inflict(self, trial: Trial, gpu: Gpu) -> None:
        for place in ("run", "status", "health", "cancel"):
            gpu.inject(fault="late", delay_seconds=2.0, on=place, seconds=self.hold_seconds)

    def repair(self, trial: Trial, gpu: Gpu) -> None:
        gpu.clear_faults()


class LyingServer(ServerConnectionFault):
    name = "lying_server"
    expected = (
        "it says that nothing runs, while connections to it break: what the dispatcher then sends to a full "
        "server is refused there and costs nothing"
    )
    bound_seconds, hold_seconds = 10.0, 8.0

    def inflict(self, trial: Trial, gpu: Gpu) -> None:
        assert trial.proxies is not None
        gpu.inject(fault="idle", on="health", seconds=self.hold_seconds * 4)
        trial.begin_excuse(gpu.name)
        trial.proxies.cut(gpu.name)

    def repair(self, trial: Trial, gpu: Gpu) -> None:
        gpu.clear_faults()
        trial.end_excuse(gpu.name)
