"""The health port: live while the loop turns, ready while the needed services answer."""

from __future__ import annotations

import errno
import json
import signal
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from dispatcher_project.celery_transport.health import (
    _MAX_CONNECTIONS,
    _REQUEST_SECONDS,
    Health,
    HealthPort,
    Loop,
    _handler,
    _Server,
)
from dispatcher_project.supervisor.embedded import EmbeddedValkey
from dispatcher_project.supervisor.notify import ALIVE, NotifySocket
from tests.support.ports import free_port
from tests.support.system.worker_bench import WorkerBench
from tests.support.waiting import wait_for


class Time:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def time_() -> Time:
    return Time()


def ask(port: int, path: str) -> tuple[int, dict[str, Any]]:
    """GET a path; (0, {}) without a listener."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)
    except OSError:
        return 0, {}


def well() -> str:
    return ""


def test_a_process_is_live_while_its_own_loop_turns(time_: Time) -> None:
    loop = Loop(time_)
    health = Health(loop, needs={})
    time_.now = 59.0
    loop.turn()
    time_.now = 118.0
    assert health.livez()[0] == 200
    another = threading.Thread(target=loop.turn)  # no sign: it is not the loop's own
    another.start()
    another.join()
    time_.now = 120.0
    status, body = health.livez()
    assert (status, body["status"], body["silent_seconds"]) == (503, "stuck", 60.0), (
        "another thread is no sign"
    )
    assert health.readyz()[0] == 503


def test_a_draining_worker_is_live_and_not_ready(time_: Time) -> None:
    health = Health(Loop(time_), needs={"broker": well}, draining=lambda: True)
    time_.now = 1e6
    assert health.livez()[0] == 200
    assert health.readyz() == (503, {"status": "draining", "checks": {}})


@pytest.mark.parametrize(
    ("broker", "fleets", "status"),
    [
        ("", {"main": "", "far": ""}, (200, "ready")),
        ("", {"main": "", "far": "the index is being rebuilt"}, (200, "degraded")),
        ("", {"main": "away", "far": "away"}, (503, "not ready")),
        ("no connection", {"main": ""}, (503, "not ready")),
        ("", {}, (200, "ready")),
    ],
)
def test_a_process_is_ready_with_all_needs_and_one_fleet(
    time_: Time, broker: str, fleets: dict[str, str], status: tuple[int, str]
) -> None:
    health = Health(
        Loop(time_),
        needs={"broker": lambda: broker},
        any_of=lambda: {name: lambda wrong=wrong: wrong for name, wrong in fleets.items()},
    )
    code, body = health.readyz()
    assert (code, body["status"]) == status


def test_a_failing_or_hanging_check_is_reported(time_: Time) -> None:
    over = threading.Event()

    def breaks() -> str:
        raise OSError

    health = Health(Loop(time_), needs={"database": breaks, "broker": lambda: str(over.wait(60))})
    assert health.readyz()[1]["checks"] == {
        "database": {"ok": False, "error": "OSError"},
        "broker": {"ok": False, "error": "does not answer"},
    }
    over.set()


def test_the_next_process_gets_the_port_after_the_last_one_releases_it(time_: Time) -> None:
    port = free_port()
    first, second = (
        HealthPort(Health(Loop(), needs={name: well}), str(port)) for name in ("first", "second")
    )
    first.start(watchdog=False)
    wait_for(lambda: ask(port, "/readyz")[1].get("checks", {}).keys() == {"first"})
    second.start(watchdog=False)
    first.stop()
    wait_for(lambda: ask(port, "/readyz")[1].get("checks", {}).keys() == {"second"})
    assert ask(port, "/nothing")[0] == 404
    second.stop()


def test_incomplete_requests_block_no_others_and_the_oldest_are_closed(time_: Time) -> None:
    port = free_port()
    served = HealthPort(Health(Loop(), needs={}), str(port))
    served.start(watchdog=False)
    wait_for(lambda: ask(port, "/livez")[0] == 200)
    with ExitStack() as stack:
        held = []
        for _ in range(3 * _MAX_CONNECTIONS):
            held.append(stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=60)))
            held[-1].sendall(b"GET /livez HTTP/1.1\r\n")
        assert held[0].recv(1) == b"", "closed"
        assert ask(port, "/livez")[0] == 200
        few = _MAX_CONNECTIONS + 4
        wait_for(lambda: _serving_threads() <= few, seconds=_REQUEST_SECONDS / 2, what="closed ones to end")
    served.stop()


def _serving_threads() -> int:
    return sum("process_request_thread" in thread.name for thread in threading.enumerate())


def test_without_a_descriptor_the_oldest_connection_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    did = []
    monkeypatch.setattr(
        "dispatcher_project.celery_transport.health.time.sleep", lambda seconds: did.append("slept")
    )
    with _Server(("127.0.0.1", 0), _handler(Health(Loop(), needs={}))) as server:
        plain = server.socket

        class Full:
            def accept(self) -> None:
                raise OSError(errno.EMFILE, "Too many open files")

        server.socket = Full()  # type: ignore[assignment]
        monkeypatch.setattr(server._connections, "end_oldest", lambda: did.append("ended"))
        server._handle_request_noblock()
        server.socket = plain
    assert did == ["ended", "slept"]


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[WorkerBench]:
    with EmbeddedValkey(tmp_path / "v", append_only=False) as server:
        bench = WorkerBench(tmp_path, server.url)
        yield bench
        bench.close()


@pytest.mark.scenario
def test_a_worker_with_a_hanging_loop_is_not_live(bench: WorkerBench, tmp_path: Path) -> None:
    port, service = free_port(), NotifySocket(tmp_path / "service")
    worker = bench.start(
        "queue_worker", "--queues", "callbacks", "--health-port", str(port),
        DISPATCHER_WORKER_SILENT_SECONDS="8", NOTIFY_SOCKET=str(service.path),
    )  # fmt: skip
    wait_for(lambda: ask(port, "/readyz") == (200, _READY))
    wait_for(lambda: ALIVE in service.read(), what="the watchdog's sign")

    worker.send_signal(signal.SIGUSR2)  # the stand-in's main thread hangs from here on
    wait_for(lambda: ask(port, "/livez")[0] == 503, what="a stuck loop")
    service.read()
    assert ask(port, "/readyz")[0] == 503
    assert ALIVE not in service.read()
    service.close()


@pytest.mark.scenario
def test_a_reconnecting_worker_is_live_and_not_ready(bench: WorkerBench, tmp_path: Path) -> None:
    port = free_port()
    with EmbeddedValkey(tmp_path / "b", append_only=False) as broker:
        bench.environment["BROKER_URL"] = broker.url
        bench.start(
            "queue_worker", "--queues", "callbacks", "--health-port", str(port),
            DISPATCHER_WORKER_SILENT_SECONDS="4",
        )  # fmt: skip
        wait_for(lambda: ask(port, "/readyz")[0] == 200)
    wait_for(lambda: ask(port, "/readyz")[0] == 503)
    assert ask(port, "/readyz")[1]["checks"]["broker"] == {"ok": False, "error": "no connection"}
    wait_for(lambda: bench.log.count("Trying again") >= 5, what="more tries than fit into its silence")
    wait_for(lambda: ask(port, "/livez")[0] == 200, seconds=10, what="its life")


_READY = {"status": "ready", "checks": {"broker": {"ok": True}, "database": {"ok": True}}}
