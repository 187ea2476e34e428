"""Real worker processes: their queues, events, probes and shutdown."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from dispatcher_project.supervisor.embedded import EmbeddedValkey
from dispatcher_project.supervisor.notify import NotifySocket
from tests.support.system.event_listener import EventListener
from tests.support.system.worker_bench import WorkerBench
from tests.support.waiting import wait_for

pytestmark = pytest.mark.scenario


class Bench(WorkerBench):
    def worked(self, pool: str) -> int:
        return len([call for call in self.calls("worked") if call == [pool]])


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with EmbeddedValkey(tmp_path / "v", append_only=False) as server:
        bench = Bench(tmp_path, server.url)
        yield bench
        bench.close()


def test_a_gpu_worker_follows_pools_shows_its_jobs_and_ends_in_order(bench: Bench) -> None:
    bench.add_pool("zimg")
    worker = bench.start("gpu_worker", "--name", "first")
    listener = EventListener(bench.app, bench.redis)

    bench.order(reports=[{"job_id": "J1"}])
    bench.order(reports=[{"job_id": "J2", "outcome": "failed", "error_code": "timeout"}])
    bench.wake("zimg")
    bench.wake("zimg")
    shown = wait_for(lambda: listener.of("task-succeeded"))[0]
    assert "'job_id': 'J1'" in shown["result"]
    assert "'server': 'zimg-1'" in shown["result"]
    failed = wait_for(lambda: listener.of("task-failed"))[0]
    assert "job_id=J2" in failed["exception"]
    assert "error_code=timeout" in failed["exception"]
    assert wait_for(lambda: listener.of("worker-heartbeat"))[0]["hostname"].startswith("first@")

    bench.add_pool("late")  # a new model's pool: consumed live
    bench.wake("late")
    wait_for(lambda: bench.worked("late"))
    bench.remove_pool("zimg")
    wait_for(lambda: "Canceling queue gpu.zimg" in bench.log)
    assert bench.app.control.ping(timeout=30, limit=1)  # Flower asks like this

    bench.order(until="its end")
    bench.wake("late")
    wait_for(lambda: len(bench.calls("work")) == 4)
    worker.send_signal(signal.SIGTERM)
    wait_for(lambda: bench.calls("drain"))
    assert bench.worked("late") == 1  # drained at once, while it runs
    bench.let("its end")
    assert worker.wait(60) == 0
    assert bench.worked("late") == 2  # it got its grace
    assert bench.calls("interrupt") == []
    assert bench.calls("stop") == [[]]
    assert list(bench.folder.glob("ready-*")) == []
    wait_for(lambda: listener.of("worker-offline"))
    listener.close()


def test_after_the_grace_runs_are_interrupted_and_the_worker_ends(bench: Bench) -> None:
    bench.add_pool("zimg")
    worker = bench.start("gpu_worker", DISPATCHER_DEPLOY_GRACE_SECONDS="0.5")
    bench.order(seconds=3600)
    bench.wake("zimg")
    wait_for(lambda: bench.calls("work"))
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(60) == 0
    assert bench.calls("interrupt") == [[]]


@pytest.mark.parametrize("signals", [[signal.SIGTERM, signal.SIGQUIT], [signal.SIGINT] * 2])
def test_a_cold_stop_interrupts_runs_at_once(bench: Bench, signals: list[signal.Signals]) -> None:
    bench.add_pool("zimg")
    worker = bench.start("gpu_worker", DISPATCHER_DEPLOY_GRACE_SECONDS="3600")
    bench.order(seconds=3600)
    bench.wake("zimg")
    wait_for(lambda: bench.calls("work"))
    for number in signals:
        worker.send_signal(number)
        wait_for(lambda: bench.calls("drain"))
    assert worker.wait(60) == 0
    assert bench.calls("interrupt") == [[]]


def test_a_reload_starts_the_next_process_and_drains_this_one(bench: Bench) -> None:
    bench.add_pool("zimg")
    service = NotifySocket(bench.folder / "service")
    worker = bench.start("gpu_worker", "--name", "one", NOTIFY_SOCKET=str(service.path))
    bench.order(until="its end")
    bench.wake("zimg")
    wait_for(lambda: bench.calls("work"))

    said = service.read()
    worker.send_signal(signal.SIGHUP)
    wait_for(lambda: said.update(service.read()) or bench.calls("drain"))
    said |= service.read()
    successor = next(int(line.removeprefix("MAINPID=")) for line in said if line.startswith("MAINPID="))
    assert "STOPPING=1" not in said, "the service goes on"
    wait_for(lambda: _wakes_until_worked(bench), what="a job on the next process")
    assert worker.poll() is None, "while the first one still has its run"
    bench.let("its end")
    assert worker.wait(60) == 0
    assert bench.calls("interrupt") == []
    assert next(iter(bench.folder.glob("ready-*"))).read_text() == f"{successor}\n"
    os.kill(successor, signal.SIGTERM)
    wait_for(lambda: not list(bench.folder.glob("ready-*")), what="the end of the next process")
    service.close()


def _wakes_until_worked(bench: Bench) -> bool:
    """A wake that the first process took just before its end is lost; the fill sends more."""
    if not bench.worked("zimg"):
        bench.wake("zimg")
    return bool(bench.worked("zimg"))


def test_a_run_that_ignores_interrupts_cannot_keep_the_worker_alive(bench: Bench) -> None:
    bench.add_pool("zimg")
    worker = bench.start("gpu_worker", DISPATCHER_DEPLOY_GRACE_SECONDS="0.1", STAND_IN_LAST_SECONDS="0.5")
    bench.order(deaf=True)
    bench.wake("zimg")
    wait_for(lambda: bench.calls("work"))
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(60) == 1


def test_a_gpu_worker_uses_less_than_120_mb(bench: Bench) -> None:
    worker = bench.start("gpu_worker", "--pool", "zimg", forked=False)
    status = Path(f"/proc/{worker.pid}/status")
    if not status.exists():
        pytest.skip("no /proc here")
    resident_kb = next(line for line in status.read_text().splitlines() if line.startswith("VmRSS")).split()[
        1
    ]
    assert int(resident_kb) < 120_000


def test_a_queue_worker_takes_its_queue_and_stops(bench: Bench) -> None:
    command = ("queue_worker", "--queues", "callbacks,sweeps", "--concurrency", "2")
    worker = bench.start(*command, STAND_IN_LAST_SECONDS="3600")
    queues = wait_for(lambda: bench.app.control.inspect(timeout=1, limit=1).active_queues())
    assert {queue["name"] for queue in next(iter(queues.values()))} == {"callbacks", "sweeps"}
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(60) == 0, "by itself, before the last resort"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["gpu_worker", "--pool", "no such/name"], "is not a valid name"),
        (["gpu_worker", "--concurrency", "0"], "is not a positive number"),
        (["queue_worker"], "--queues"),
        (
            ["queue_worker", "--queues", "nope"],
            "^no queue is named nope; there are sweeps, callbacks, workflows$",
        ),
        (["queue_worker", "--queues", "sweeps,gpu.zimg"], "no queue is named gpu.zimg; there are"),
    ],
)
def test_bad_arguments_are_refused_with_a_reason(arguments: list[str], says: str) -> None:
    from django.core.management import CommandError, call_command

    with pytest.raises(CommandError, match=says):
        call_command(*arguments)
