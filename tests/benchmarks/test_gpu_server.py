"""The simulated GPU server: slots, gate, log, and a dispatcher's requests."""

from __future__ import annotations

import http.client
import json
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit

import pytest

from benchmarks.suite.gpu import Gpu, NotDone
from tests.support.ports import free_port
from verification.proving.children import Children
from verification.proving.system import clean_environment

Ask = Callable[..., tuple[int, dict[str, Any]]]


@pytest.fixture(scope="module")
def gpu(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gpu]:
    children = Children(tmp_path_factory.mktemp("log"), clean_environment())
    yield Gpu(children, free_port())
    children.close()


@pytest.fixture
def ask(gpu: Gpu) -> Ask:
    def ask(method: str, path: str, body: Any = None, **headers: str) -> tuple[int, dict[str, Any]]:
        connection = http.client.HTTPConnection(urlsplit(gpu.url).netloc, timeout=20)
        connection.request(method, path, json.dumps(body) if body is not None else None, headers)
        answer = connection.getresponse()
        found = answer.status, json.loads(answer.read())
        connection.close()
        return found

    return ask


def nothing() -> None:
    """A check that never raises."""


def test_a_run_takes_a_slot_for_its_time_and_is_in_the_log(gpu: Gpu, ask: Ask):
    gpu.begin(1, gate=False)
    status, results = ask("POST", "/run", {"job": 7, "seconds": 0.05}, **{"X-Job-Id": "01K"})
    assert (status, results["status"], results["result"]) == (200, "success", {"job": 7})
    (run,), refused, _ = gpu.log()
    assert (run.job, run.slot, run.remote_id, refused) == (7, 0, "01K", 0)
    assert 0.05 <= run.ended - run.began < 5.0


def test_an_answer_in_two_pieces_is_the_same(gpu: Gpu):
    gpu.begin(1, gate=False)
    body = json.dumps({"job": 7, "seconds": 0.0}).encode()
    with socket.create_connection(("127.0.0.1", urlsplit(gpu.url).port or 0), timeout=20) as connection:
        connection.sendall(b"POST /apart HTTP/1.1\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
        answer = b""
        while not answer.endswith(b"}}"):
            answer += connection.recv(65536)
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["result"] == {"job": 7}


def test_a_full_server_refuses_and_counts_it(gpu: Gpu, ask: Ask):
    gpu.begin(1)
    with ThreadPoolExecutor(1) as thread:
        held = thread.submit(ask, "POST", "/run", {"job": 1, "seconds": 0.0})
        gpu.wait_for("held", 1, 20.0, nothing)
        assert ask("POST", "/run", {"job": 2, "seconds": 0.0})[0] == 503
        gpu.open_gate()
        assert held.result()[0] == 200
    runs, refused, _ = gpu.log()
    assert ([run.job for run in runs], refused) == ([1], 1)


def test_a_runs_time_begins_when_the_gate_opens(gpu: Gpu, ask: Ask):
    gpu.begin(2)
    with ThreadPoolExecutor(1) as thread:
        held = thread.submit(ask, "POST", "/run", {"job": 1, "seconds": 0.01})
        gpu.wait_for("held", 1, 20.0, nothing)
        assert (gpu.standing()["ended"], held.done()) == (0, False)
        assert ask("GET", "/health")[1]["active_jobs"] == 1
        assert gpu.log()[0] == []
        opened = time.monotonic()
        gpu.open_gate()
        held.result()
    assert gpu.log()[0][0].began >= opened
    assert gpu.standing()["ended"] == 1


def test_health_names_the_active_runs(gpu: Gpu, ask: Ask):
    gpu.begin(2)
    status, results = ask("POST", "/async", {"job": 5, "seconds": 0.0}, **{"X-Job-Id": "j", "X-Attempt": "a"})
    assert (status, results) == (202, {"status": "processing", "job_id": "j"})
    assert ask("GET", "/health")[1]["jobs"] == [{"job_id": "j", "attempt": "a"}]
    assert ask("GET", "/status/j")[1]["status"] == "processing"
    gpu.open_gate()
    gpu.wait_for("ended", 1, 20.0, nothing)
    assert ask("GET", "/status/j")[1]["status"] == "success"
    assert ask("GET", "/status/other")[0] == 404
    assert ask("GET", "/health")[1]["jobs"] == []
    assert gpu.standing()["polls"] == 3


def test_callbacks_are_logged_with_their_time(gpu: Gpu, ask: Ask):
    gpu.begin(1, gate=False)
    ask("POST", "/callback", {"job_id": "j"})
    (callback,) = gpu.log()[2]
    assert callback[0] == "j"


def test_requests_that_come_in_pieces_or_two_at_once_are_read(gpu: Gpu):
    gpu.begin(2, gate=False)
    one = b'POST /run HTTP/1.1\r\nHost: x\r\nContent-Length: 26\r\n\r\n{"job": 1, "seconds": 0.0}'
    with socket.create_connection(urlsplit(gpu.url).netloc.split(":"), timeout=20) as connection:  # type: ignore[arg-type]
        connection.sendall(one[:30])
        gpu.standing()  # it has had the time to read so much
        connection.sendall(one[30:] + one.replace(b'"job": 1', b'"job": 2'))
        gpu.wait_for("ended", 2, 20.0, nothing)
    assert [run.job for run in gpu.log()[0]] == [1, 2]


def test_waiting_without_any_progress_ends(gpu: Gpu):
    gpu.begin(1)
    with pytest.raises(NotDone, match="ended 0 of 5 jobs"):
        gpu.wait_for("ended", 5, 0.05, nothing)
