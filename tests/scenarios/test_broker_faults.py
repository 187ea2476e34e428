"""A worker whose broker dies, resets, or falls silent goes on working, and can always be stopped."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from dispatcher_project.supervisor.embedded import EmbeddedValkey
from tests.support.ports import free_port
from tests.support.servers.silent_proxy import SilentProxy
from tests.support.system.worker_bench import WorkerBench
from tests.support.waiting import wait_for

pytestmark = pytest.mark.scenario


class BrokerHarness:
    """Worker → proxy → Valkey; the test itself talks to Valkey directly. All tests have one: a start of the
    worker takes more CPU time than they do."""

    def __init__(self, folder: Path) -> None:
        port = free_port()
        self.valkey = EmbeddedValkey(folder / "valkey", port=port)
        self.valkey.start()
        self.proxy = SilentProxy(port)
        self.bench = WorkerBench(folder, self.valkey.url, broker_url=f"redis://127.0.0.1:{self.proxy.port}/0")
        self.bench.add_pool("zimg")
        self._worker: subprocess.Popen[bytes] | None = None

    def worker(self) -> subprocess.Popen[bytes]:
        """The one that runs; the first call, or the first after its end, starts it."""
        if self._worker is None or self._worker.poll() is not None:
            self._worker = self.bench.start("gpu_worker")
        return self._worker

    def wake(self) -> None:
        self.bench.wake("zimg")

    def calls(self, name: str) -> int:
        return len(self.bench.calls(name))

    def wait_for_worked(self, count: int) -> None:
        """count: since the worker of this test file began."""
        wait_for(lambda: self.calls("worked") >= count, what=f"{count} wakes worked\n{self.bench.log}")

    def losses(self) -> int:
        """How often the worker has found its connection gone."""
        return self.bench.log.lower().count("connection to broker lost")

    def close(self) -> None:
        self.bench.close()
        self.proxy.close()
        self.valkey.stop()


@pytest.fixture(scope="module")
def harness(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerHarness]:
    harness = BrokerHarness(tmp_path_factory.mktemp("broker"))
    yield harness
    harness.close()


def test_a_reset_connection_does_not_start_the_running_wake_a_second_time(harness: BrokerHarness) -> None:
    harness.worker()
    begun, worked = harness.calls("work"), harness.calls("worked")
    harness.bench.order(seconds=2)
    harness.wake()
    wait_for(lambda: harness.calls("work") > begun)
    harness.proxy.reset()
    harness.wait_for_worked(worked + 1)
    harness.wake()
    harness.wait_for_worked(worked + 2)
    assert harness.calls("work") == begun + 2


def test_a_busy_worker_outlives_a_broker_that_dies(harness: BrokerHarness) -> None:
    worker = harness.worker()
    begun, worked, losses = harness.calls("work"), harness.calls("worked"), harness.losses()
    harness.bench.order(seconds=3)
    harness.wake()
    wait_for(lambda: harness.calls("work") > begun)
    harness.valkey.kill()
    wait_for(lambda: harness.losses() > losses, what=harness.bench.log)
    harness.valkey.start()
    harness.wait_for_worked(worked + 1)
    harness.wake()
    harness.wait_for_worked(worked + 2)
    assert worker.poll() is None


def test_a_silent_partition_is_noticed_healed_and_no_obstacle_to_a_stop(harness: BrokerHarness) -> None:
    worker = harness.worker()
    worked, losses = harness.calls("worked"), harness.losses()
    harness.wake()
    harness.wait_for_worked(worked + 1)
    harness.proxy.silence()
    wait_for(lambda: harness.losses() > losses, what=harness.bench.log)
    harness.proxy.heal()
    harness.wake()
    harness.wait_for_worked(worked + 2)
    harness.proxy.silence()
    worker.send_signal(signal.SIGTERM)
    worker.wait(60)
    assert harness.bench.calls("drain") == [[]]
    harness.proxy.heal()
