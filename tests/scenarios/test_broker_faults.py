"""A worker whose broker dies, resets, or falls silent goes on working, and can always be stopped."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from dispatcher_project.supervisor.embedded import EmbeddedValkey
from tests.support.ports import free_port
from tests.support.servers.silent_proxy import SilentProxy
from tests.support.system.worker_bench import WorkerBench
from tests.support.waiting import wait_for

pytestmark = pytest.mark.scenario


class Rig:
    """Worker → proxy → Valkey; the test itself talks to Valkey directly."""

    def __init__(self, folder: Path) -> None:
        port = free_port()
        self.valkey = EmbeddedValkey(folder / "valkey", port=port)
        self.valkey.start()
        self.proxy = SilentProxy(port)
        self.bench = WorkerBench(folder, self.valkey.url, broker_url=f"redis://127.0.0.1:{self.proxy.port}/0")
        self.bench.add_pool("zimg")

    def wake(self) -> None:
        self.bench.wake("zimg")

    def worked(self) -> int:
        return len(self.bench.calls("worked"))

    def wait_for_worked(self, count: int) -> None:
        wait_for(lambda: self.worked() >= count, seconds=60, what=f"{count} wakes worked\n{self.bench.log}")

    def close(self) -> None:
        self.bench.close()
        self.proxy.close()
        self.valkey.stop()


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    rig = Rig(tmp_path)
    yield rig
    rig.close()


def test_a_silent_partition_is_noticed_healed_and_no_obstacle_to_a_stop(rig: Rig) -> None:
    worker = rig.bench.start("gpu_worker")
    rig.wake()
    rig.wait_for_worked(1)
    rig.proxy.silence()
    wait_for(lambda: "connection to broker lost" in rig.bench.log.lower(), seconds=60, what=rig.bench.log)
    rig.proxy.heal()
    rig.wake()
    rig.wait_for_worked(2)
    rig.proxy.silence()
    worker.send_signal(signal.SIGTERM)
    worker.wait(60)
    assert rig.bench.calls("drain") == [[]]


def test_a_busy_worker_outlives_a_broker_that_dies(rig: Rig) -> None:
    worker = rig.bench.start("gpu_worker")
    rig.bench.order(seconds=3)
    rig.wake()
    wait_for(lambda: rig.bench.calls("work"))
    rig.valkey.kill()
    wait_for(lambda: "connection to broker lost" in rig.bench.log.lower(), seconds=60, what=rig.bench.log)
    rig.valkey.start()
    rig.wait_for_worked(1)
    rig.wake()
    rig.wait_for_worked(2)
    assert worker.poll() is None


def test_a_reset_connection_does_not_start_the_running_wake_a_second_time(rig: Rig) -> None:
    rig.bench.start("gpu_worker")
    rig.bench.order(seconds=2)
    rig.wake()
    wait_for(lambda: rig.bench.calls("work"))
    rig.proxy.reset()
    rig.wait_for_worked(1)
    rig.wake()
    rig.wait_for_worked(2)
    assert len(rig.bench.calls("work")) == 2
