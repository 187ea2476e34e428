"""Drills on a whole `up`: jobs, runs and a schedule are under way while a process is killed, Valkey is full,
or the disk under the live SQLite database is full. All of it ends once, and nothing is left over.

`python3 manage.py test -m by_hand tests/scenarios/test_drills.py`; the drill of the disk mounts a file system
in memory, so it needs root and Linux.
"""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pytest_django import DjangoDbBlocker

from dispatcher_project.supervisor.data_folder import ROOT
from dispatcher_project.supervisor.embedded import find_valkey
from tests.support.fakes import make_ports
from tests.support.system.judges import Judge
from tests.support.system.running import System
from tests.support.system.up import Up
from tests.support.waiting import wait_for
from verification.hostile.attacks.full_disk import fill
from verification.proving import own_redis
from verification.schedule_laws import check_schedules
from verification.workflow_laws import check_runs

pytestmark = [
    pytest.mark.by_hand,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(find_valkey() is None, reason="no Valkey or Redis server binary"),
]
ENVIRONMENT = {
    "DISPATCHER_LEASE_SECONDS": "8",
    "DISPATCHER_RENEW_SECONDS": "2",
    "DISPATCHER_RETRY_BASE_SECONDS": "0.5",
    "DISPATCHER_RECONCILE_SECONDS": "5",
    "DISPATCHER_SCHEDULE_MIN_SECONDS": "1",
    "DISPATCHER_DEPLOY_GRACE_SECONDS": "10",
}
MAP = {
    "nodes": {
        "first": {"model": "zimg", "payload": {"echo": [1, 2, 3], "seconds": 0.2}},
        "each": {
            "map": {"over": {"$ref": "first.echo"}, "max_parallel": 2},
            "model": "flux",
            "payload": {"echo": {"$ref": "item"}, "seconds": 0.2},
        },
        "rest": {"timer": {"seconds": 0.5}},
        "last": {
            "model": "zimg",
            "payload": {"echo": {"$ref": "each[*].echo"}, "seconds": 0.2},
            "needs": ["rest"],
        },
    },
    "output": {"$ref": "last.echo"},
}
CALM_SECONDS = 240.0
"""Within which all must have ended once the faults are over; this machine may be busy."""
FULL_SECONDS = 20.0


class Load:
    """Submits a job about every 0.3 s and a run every 2 s, beside a schedule every 2 s. Requests are repeated
    with their key until they are answered. answers: statuses, with the codes of errors."""

    def __init__(self, up: Up, callback_url: str) -> None:
        self.up, self.callback_url = up, callback_url
        self.answers: Counter[str] = Counter()
        self.bodies: dict[str, dict[str, Any]] = {}
        self.jobs: set[str] = set()
        self.runs: set[str] = set()
        self._stop = threading.Event()
        self.must("PUT", "/workflows/m", MAP)
        target = {"model": "zimg", "payload": {"echo": 1, "seconds": 0.1}}
        self.must(
            "PUT",
            "/schedules/s",
            {"every_seconds": 2, "submit": target, "overlap": "allow", "catch_up": "all"},
        )
        self._threads = [threading.Thread(target=self._feed, args=(one,)) for one in ("job", "run")]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(90)
            assert not thread.is_alive()
        self.must("POST", "/schedules/s/pause", {})

    def must(self, method: str, path: str, body: Any = None, key: str | None = None) -> dict[str, Any]:
        """The answer of a request that is repeated until it is accepted."""
        began = time.monotonic()
        while True:
            status, found = self.ask(method, path, body, key)
            if 200 <= status < 300:
                return found
            assert time.monotonic() - began < 120, (status, found)
            assert status in (0, 409, 429, 500, 502, 503), (status, found)
            time.sleep(0.3)

    def ask(
        self, method: str, path: str, body: Any = None, key: str | None = None
    ) -> tuple[int, dict[str, Any]]:
        facts = self.up.known
        headers = {"Authorization": f"Bearer {facts['tenant_key']}", "Content-Type": "application/json"}
        if key is not None:
            headers["Idempotency-Key"] = key
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{facts['url']}/api/v1{path}", data, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=20) as response:
                self.answers[str(response.status)] += 1
                return response.status, json.load(response)
        except urllib.error.HTTPError as error:
            with suppress(ValueError, OSError):
                found = json.load(error)
                self.bodies[f"{error.code} {found.get('code')}"] = found
                self.answers[f"{error.code} {found.get('code')}"] += 1
                return error.code, found
            return error.code, {}
        except OSError as error:
            self.answers[type(getattr(error, "reason", error)).__name__] += 1
            return 0, {}

    def _feed(self, kind: str) -> None:
        number = 0
        while not self._stop.wait(0.3 if kind == "job" else 2.0):
            number += 1
            if kind == "job":
                body = {
                    "model": "flux" if number % 3 else "zimg",
                    "payload": {"echo": number, "seconds": 0.3},
                    "callback_url": self.callback_url,
                    "max_retries": 5,
                }
                self.jobs.add(self.must("POST", "/queue/submit", body, f"job-{id(self)}-{number}")["job_id"])
            else:
                body = {"inputs": None, "callback_url": self.callback_url}
                self.runs.add(
                    self.must("POST", "/workflows/m/runs", body, f"run-{id(self)}-{number}")["run_id"]
                )


class KnownUp(Up):
    """Remembers its facts: up.json is rewritten while processes come and go."""

    def begin(self) -> KnownUp:
        self.known = self.facts()
        return self

    def pid(self, name: str) -> int:
        try:
            return int(json.loads((self.folder / "up.json").read_text())["pids"].get(name, 0))
        except (OSError, ValueError):
            return 0

    def doctor(self) -> str:
        ours = ("DJANGO_SETTINGS_MODULE", "DJANGO_SECRET_KEY")
        inherited = {name: value for name, value in os.environ.items() if name not in ours}
        done = subprocess.run(
            [sys.executable, "manage.py", "doctor"],
            cwd=ROOT,
            env={**inherited, "DISPATCHER_NO_BOOTSTRAP": "1", "DISPATCHER_DATA_DIR": str(self.folder)},
            capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        return done.stdout + done.stderr

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            self.process.wait(120)


class Receiver:
    """Gets callbacks. subjects: ids of jobs and runs, with their number."""

    def __init__(self) -> None:
        self.subjects: Counter[str] = Counter()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                data = body.get("data", body)
                outer.subjects[data.get("job_id") or data.get("run_id")] += 1
                self.send_response(204)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    receiver = Receiver()
    yield receiver
    receiver.server.shutdown()
    receiver.server.server_close()


def report(*said: object) -> None:
    """Print for the operator of a drill, with `-s`."""
    sys.stdout.write(f"{' '.join(map(str, said))}\n")
    sys.stdout.flush()


def unended(folder: Path) -> dict[str, int]:
    """Rows that have not ended, by kind."""
    questions = {
        "jobs": "SELECT count(*) FROM jobs_job WHERE finished_at IS NULL",
        "runs": "SELECT count(*) FROM workflows_run WHERE finished_at IS NULL",
        "firings": "SELECT count(*) FROM schedules_firing WHERE outcome = 'waiting'",
        "callbacks": "SELECT count(*) FROM jobs_callback WHERE state = 'pending'",
        "notices": "SELECT count(*) FROM jobs_endnotice",
    }
    with closing(sqlite3.connect(folder / "db.sqlite3", timeout=30)) as database:
        found = {kind: database.execute(question).fetchone()[0] for kind, question in questions.items()}
    return {kind: count for kind, count in found.items() if count}


def judge(up: KnownUp, load: Load, receiver: Receiver, blocker: DjangoDbBlocker) -> None:
    """All has ended, by the laws: each accepted job and run once, with its callback."""
    wait_for(lambda: not unended(up.folder), seconds=CALM_SECONDS, what=f"the ends: {unended(up.folder)}")
    system = SimpleNamespace(facts=up.known, servers=[], folder=up.folder, accepted=None)
    judge = Judge(cast(System, system), blocker)
    judge.assert_laws()
    with judge.rows():
        ports = make_ports(judge.leases)
        assert not list(check_runs(ports, drained=True))
        assert not list(check_schedules())
    with closing(sqlite3.connect(up.folder / "db.sqlite3")) as database:
        jobs = dict(database.execute("SELECT id, state FROM jobs_job"))
        runs = dict(database.execute("SELECT id, state FROM workflows_run"))
    assert load.jobs <= jobs.keys()
    assert load.runs <= runs.keys()
    report("jobs", Counter(jobs.values()), "runs", Counter(runs.values()), "answers", dict(load.answers))
    assert set(jobs.values()) == {"completed"}
    assert set(runs.values()) == {"completed"}
    missing = (load.jobs | load.runs) - receiver.subjects.keys()
    assert not missing, f"{len(missing)} without a callback"


def kill(name: str, up: KnownUp, load: Load) -> None:
    """SIGKILL a process, and wait for its successor and for a job that is submitted then."""
    wait_for(lambda: unended(up.folder).get("runs"), what="runs under way")
    pid = wait_for(lambda: up.pid(name), seconds=90)
    began = time.monotonic()
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: up.pid(name) not in (0, pid), seconds=90, what=f"a new {name}")
    back = time.monotonic() - began
    body = {"model": "ltx2", "payload": {"echo": 1, "seconds": 0.1}}
    job = load.must("POST", "/queue/submit", body)["job_id"]
    wait_for(lambda: load.ask("GET", f"/queue/jobs/{job}?wait=5")[1].get("finished_at"), seconds=90)
    report(f"{name}: back after {back:.1f} s, a job after {time.monotonic() - began:.1f} s")


def test_each_process_is_killed_and_then_the_supervisor(
    tmp_path_factory: pytest.TempPathFactory, receiver: Receiver, django_db_blocker: DjangoDbBlocker
) -> None:
    folder = tmp_path_factory.mktemp("d") / "var"
    up = KnownUp(folder, environment=ENVIRONMENT).begin()
    try:
        load = Load(up, receiver.url)
        for name in sorted(up.known["pids"].keys() - {"up"}):
            kill(name, up, load)
        wait_for(lambda: unended(folder).get("runs"), what="runs under way")
        up.kill()
        report("up killed:", unended(folder))
        old = load
        again = KnownUp(folder, "--port", str(up.port), environment=ENVIRONMENT)
        up.known = again.begin().known
        try:
            old.stop()
            judge(again, old, receiver, django_db_blocker)
        finally:
            again.end()
        assert again.left() == []
    finally:
        up.end()


def test_a_full_valkey(
    tmp_path_factory: pytest.TempPathFactory, receiver: Receiver, django_db_blocker: DjangoDbBlocker
) -> None:
    up = KnownUp(tmp_path_factory.mktemp("d") / "var", environment=ENVIRONMENT).begin()
    try:
        load = Load(up, receiver.url)
        wait_for(lambda: unended(up.folder).get("runs"), what="runs under way")
        before = own_redis.fill_up(up.known["redis_url"])
        load.answers.clear()
        load.bodies.clear()
        time.sleep(FULL_SECONDS)  # the length of the fault
        assert own_redis.refused_writes(up.known["redis_url"])
        said = up.doctor()
        report("while full:", dict(load.answers), json.dumps(load.bodies)[:2000], unended(up.folder))
        own_redis.set_max_memory(up.known["redis_url"], before)
        assert "of maxmemory is used" in said, said
        load.stop()
        judge(up, load, receiver, django_db_blocker)
    finally:
        up.end()


@contextmanager
def small_disk(path: Path, megabytes: int) -> Iterator[Path]:
    path.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(path)], check=True)
    try:
        yield path
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)


@pytest.mark.skipif(sys.platform != "linux" or os.geteuid() != 0, reason="mounts a file system")
def test_a_full_disk_under_the_live_database(
    tmp_path_factory: pytest.TempPathFactory, receiver: Receiver, django_db_blocker: DjangoDbBlocker
) -> None:
    with small_disk(tmp_path_factory.mktemp("d") / "disk", 100) as disk:
        up = KnownUp(disk / "var", environment=ENVIRONMENT).begin()
        try:
            load = Load(up, receiver.url)
            wait_for(lambda: unended(up.folder).get("runs"), what="runs under way")
            load.answers.clear()
            load.bodies.clear()
            ballast = disk / "ballast"
            fill(ballast)
            time.sleep(FULL_SECONDS)  # the length of the fault
            said = up.doctor()
            report("while full:", dict(load.answers), json.dumps(load.bodies)[:3000])
            ballast.unlink()
            assert "disk" in said, said
            assert any(answer.startswith("503") for answer in load.answers), load.answers
            load.stop()
            judge(up, load, receiver, django_db_blocker)
            report([line for line in said.splitlines() if "disk" in line][:5])
        finally:
            up.end()
