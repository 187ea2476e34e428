"""Flower on our broker, started as operators start it: shows the worker and its jobs, asks a password."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dispatcher_project.embedded import EmbeddedValkey
from tests.dispatcher_project.worker_bench import ROOT, WorkerBench, wait_for

pytestmark = pytest.mark.scenario

PASSWORD = "admin:only-for-this-test"


class Flower:
    def __init__(self, bench: WorkerBench) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        with (bench.folder / "flower.log").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "celery", "-A", "dispatcher_project", "flower", f"--port={self.port}"],
                env=bench.environment | {"FLOWER_BASIC_AUTH": PASSWORD, "FLOWER_UNAUTHENTICATED_API": "0"},
                cwd=ROOT,
                stdout=log,
                stderr=log,
            )

    def get(self, path: str, *, password: str = PASSWORD) -> tuple[int, str]:
        """Status (0: nobody there yet) and body."""
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}")
        request.add_header("Authorization", f"Basic {b64encode(password.encode()).decode()}")
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, ""
        except OSError:
            return 0, ""

    def get_json(self, path: str) -> Any:
        return json.loads(self.get(path)[1] or "{}")

    def post_status(self, path: str) -> int:
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", data=b"", method="POST")
        request.add_header("Authorization", f"Basic {b64encode(PASSWORD.encode()).decode()}")
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            return error.code

    def close(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[WorkerBench]:
    with EmbeddedValkey(tmp_path / "v", append_only=False) as server:
        bench = WorkerBench(tmp_path, server.url)
        yield bench
        bench.close()


def test_flower_shows_the_worker_and_its_jobs_behind_a_password(bench: WorkerBench) -> None:
    flower = Flower(bench)
    try:
        wait_for(lambda: flower.get("/workers")[0] == 200, what="Flower")
        assert flower.get("/workers", password="admin:wrong")[0] == 401

        bench.add_pool("zimg")
        bench.start("gpu_worker", "--name", "shown")
        wait_for(lambda: "shown@" in flower.get("/workers")[1], what="the worker")
        bench.order(reports=[{"job_id": "J1"}])
        bench.order(reports=[{"job_id": "J2", "error_code": "timeout"}])
        for _ in range(2):
            bench.wake("zimg")
        wait_for(lambda: len(_tasks(flower)) == 2, what="both tasks")
        by_state = {task["state"]: task for task in _tasks(flower).values()}
        assert "'job_id': 'J1'" in by_state["SUCCESS"]["result"]
        assert "error_code=timeout" in by_state["FAILURE"]["exception"]

        def knows_the_queue() -> bool:
            # asked again each time: Flower's question may have come before the worker listened
            assert flower.get("/api/workers?refresh=1")[0] == 200
            return "gpu.zimg" in flower.get("/broker")[1]

        # the broker is reached over its unix socket, by our transport
        wait_for(knows_the_queue, what="the queue")
        assert flower.post_status("/api/worker/shutdown/shown") in {403, 405}  # read-only
    finally:
        flower.close()


def _tasks(flower: Flower) -> dict[str, Any]:
    found: dict[str, Any] = flower.get_json("/api/tasks")
    return {key: task for key, task in found.items() if task["state"] in {"SUCCESS", "FAILURE"}}
