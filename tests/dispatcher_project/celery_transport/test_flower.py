"""Flower on our broker, started as operators start it: it shows workers and jobs, and needs a password."""

from __future__ import annotations

import json
import re
import runpy
import select
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from base64 import b64encode
from collections.abc import Iterator
from contextlib import ExitStack
from http.client import HTTPConnection
from types import SimpleNamespace
from typing import Any

import flower.app as flower_app
import pytest
from flower.urls import handlers
from tornado.options import options

from admin_ui import FLOWER_PREFIX
from dispatcher_project.celery_transport import flower_server
from dispatcher_project.celery_transport.flower_server import BoundedHTTPServer
from dispatcher_project.supervisor.data_folder import ROOT
from dispatcher_project.supervisor.embedded import EmbeddedValkey
from tests.support.ports import free_port
from tests.support.system.worker_bench import WorkerBench
from tests.support.waiting import wait_for

pytestmark = pytest.mark.scenario

PASSWORD = "admin:only-for-this-test"
CONFIG = str(ROOT / "dispatcher_project/celery_transport/flower_config.py")
OPEN = {"/healthcheck", "/static/x", "/login", "/logout"}
"""The sign of life that `up` waits for, Flower's own scripts and styles, a page that is not there, and a
goodbye."""


class Flower:
    def __init__(self, bench: WorkerBench) -> None:
        self.port = free_port()
        with (bench.folder / "flower.log").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "celery", "-A", "dispatcher_project", "flower", f"--port={self.port}"],
                env=bench.environment | {"FLOWER_BASIC_AUTH": PASSWORD, "FLOWER_UNAUTHENTICATED_API": "0"},
                cwd=ROOT,
                stdout=log,
                stderr=log,
            )

    @staticmethod
    def login(password: str = PASSWORD) -> str:
        return f"Basic {b64encode(password.encode()).decode()}"

    def ask(self, path: str, *, password: str = PASSWORD, method: str = "GET") -> tuple[int, str]:
        """Status (0: no connection yet) and body. password: empty for none."""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/{FLOWER_PREFIX}{path}",
            data=b"" if method == "POST" else None,
            method=method,
        )
        if password:
            request.add_header("Authorization", self.login(password))
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, ""
        except OSError:
            return 0, ""

    def tasks(self) -> dict[str, dict[str, Any]]:
        """Flower's tasks by job id, for tasks that have one."""
        listed = json.loads(self.ask("/api/tasks")[1] or "{}").values()
        named = [(re.search(r"'job_id': '(\w+)'", task["kwargs"] or ""), task) for task in listed]
        return {found[1]: task for found, task in named if found}

    def close(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedValkey]:
    with EmbeddedValkey(tmp_path_factory.mktemp("v"), append_only=False) as server:
        yield server


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory, server: EmbeddedValkey) -> Iterator[WorkerBench]:
    bench = WorkerBench(tmp_path_factory.mktemp("bench"), server.url)
    yield bench
    bench.close()


@pytest.fixture(scope="module")
def flower(bench: WorkerBench) -> Iterator[Flower]:
    flower = Flower(bench)
    try:
        wait_for(lambda: flower.ask("/workers")[0] == 200, seconds=60, what="Flower")
        yield flower
    finally:
        flower.close()


def routes() -> list[str]:
    """Every path that this Flower serves, with something in the place of what a pattern leaves open."""
    patterns = [getattr(handler, "regex", None) or re.compile(handler[0]) for handler in handlers]
    paths = [pattern.pattern.rstrip("$").removesuffix("/?") for pattern in patterns]
    return sorted({re.sub(r"\(\.[+*]\)", "x", path) for path in paths if path.startswith("/")})


@pytest.mark.parametrize("given", [[], [""]])  # not set; set to nothing
def test_flower_does_not_start_open(monkeypatch: pytest.MonkeyPatch, given: list[str]) -> None:
    assert not options.basic_auth
    monkeypatch.setattr(options.mockable(), "basic_auth", given)
    with pytest.raises(SystemExit, match="set FLOWER_BASIC_AUTH"):
        runpy.run_path(CONFIG)


def test_environment_variables_override_flowers_options(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(options.mockable(), "basic_auth", [PASSWORD])
    assert runpy.run_path(CONFIG)["read_only"] is True
    monkeypatch.setenv("FLOWER_READ_ONLY", "false")
    assert "read_only" not in runpy.run_path(CONFIG)


def test_flower_listens_on_loopback_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(options.mockable(), "basic_auth", [PASSWORD])
    assert runpy.run_path(CONFIG)["address"] == "127.0.0.1"


def test_flowers_connections_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(options.mockable(), "basic_auth", [PASSWORD])
    runpy.run_path(CONFIG)
    assert flower_app.HTTPServer is BoundedHTTPServer, "what Flower itself makes"
    server = BoundedHTTPServer(lambda request: None)
    limits = server.conn_params
    assert (limits.header_timeout, limits.body_timeout, limits.max_body_size) == (60.0, 30.0, 1024 * 1024)
    server.max_connections = 0
    closed = []
    server.handle_stream(SimpleNamespace(close=lambda: closed.append(True)), ("127.0.0.1", 1))
    assert closed
    assert not server._connections


def test_flower_serves_a_bounded_number_of_connections(flower: Flower) -> None:
    with ExitStack() as stack:
        held = [
            stack.enter_context(socket.create_connection(("127.0.0.1", flower.port), timeout=60))
            for _ in range(flower_server.MAX_CONNECTIONS + 1)
        ]
        # sooner than a connection without a head would be; which of them came last, the kernel decides
        closed, _, _ = select.select(held, [], [], 0.8 * flower_server.BOUNDS["idle_connection_timeout"])
        assert [one.recv(1) for one in closed[:1]] == [b""], "one too many is closed"
    wait_for(lambda: flower.ask("/workers")[0] == 200, seconds=60, what="Flower again")


def test_every_page_needs_the_password_and_controls_are_refused(flower: Flower) -> None:
    assert len(routes()) > 25
    without = {path: flower.ask(path, password="")[0] for path in routes()}
    assert {path for path, status in without.items() if status not in (401, 405)} <= OPEN, without
    assert flower.ask("/workers", password="admin:wrong")[0] == 401
    controls = [path for path, status in without.items() if status == 405]
    assert {flower.ask(path, method="POST")[0] for path in controls} == {403}, "read-only"
    assert {"/api/worker/shutdown/x", "/api/task/revoke/x", "/api/task/apply/x"} <= set(controls)


def test_the_bare_prefix_redirects_and_needs_the_password(flower: Flower) -> None:
    """What up.json calls flower_url. The answer itself is looked at, not where it leads."""
    connection = HTTPConnection("127.0.0.1", flower.port, timeout=60)
    answers = {}
    for name, headers in (("without a login", {}), ("with the login", {"Authorization": flower.login()})):
        connection.request("GET", f"/{FLOWER_PREFIX}", headers=headers)
        answer = connection.getresponse()
        answer.read()
        answers[name] = (answer.status, answer.getheader("Location"))
    connection.close()
    assert answers == {"without a login": (401, None), "with the login": (302, f"/{FLOWER_PREFIX}/")}
    assert flower.ask("")[0] == 200, "followed"
    assert flower.ask("/nowhere")[0] == 404


def test_flower_shows_tasks_with_their_jobs_also_after_its_broker_died(
    bench: WorkerBench, server: EmbeddedValkey, flower: Flower
) -> None:
    bench.add_pool("zimg")
    bench.start("gpu_worker", "--name", "shown")
    wait_for(lambda: "shown@" in flower.ask("/workers")[1], what="the worker")
    bench.order(shows="J1", until="go", reports=[{"job_id": "J1"}])
    bench.wake("zimg")
    running = wait_for(lambda: flower.tasks().get("J1"), what="the running job")
    assert running["state"] == "STARTED"
    assert running["args"] == "zimg on zimg-1/0"
    bench.let("go")
    wait_for(lambda: flower.tasks().get("J1", {}).get("state") == "SUCCESS", what="its end")
    assert "'outcome': 'completed'" in flower.tasks()["J1"]["result"]

    def shows_the_queue() -> bool:
        # asked again each time: Flower's question may have come before the worker listened
        assert flower.ask("/api/workers?refresh=1")[0] == 200
        return "gpu.zimg" in flower.ask("/broker")[1]

    # the broker is reached over its unix socket, by our transport
    wait_for(shows_the_queue, what="the queue")

    server.kill()
    server.start()

    def shows_a_new_task() -> bool:
        bench.order(shows="J2", reports=[{"job_id": "J2", "error_code": "timeout"}])
        bench.wake("zimg")  # a wake of before the worker was back is lost
        return flower.tasks().get("J2", {}).get("state") == "FAILURE"

    wait_for(shows_a_new_task, seconds=40, what="a task after the restart")
    assert "error_code=timeout" in flower.tasks()["J2"]["exception"]
    assert flower.tasks()["J1"]["state"] == "SUCCESS", "what it knew before"
