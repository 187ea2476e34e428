"""`manage.py up` as a user meets it: real processes, real ports, a job through the demo fleet.

`old_data_folder/db.sql` is the database that version 0.1 of 2026-11-25 (before rooms and names changed) left
behind when it was killed, with jobs in every state. It has no keys and no passwords: `up` makes new ones.
Its times are moved to now: a day later the deadlines of its jobs are over.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import sqlite3
import stat
import subprocess
import sys
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from dispatcher_project.supervisor.data_folder import ROOT
from dispatcher_project.supervisor.embedded import find_valkey
from tests.support.processes import is_alive
from tests.support.system.running import SHORT_WAITS
from tests.support.system.up import Up
from tests.support.waiting import wait_for

pytestmark = [
    pytest.mark.scenario,
    pytest.mark.skipif(find_valkey() is None, reason="no Valkey or Redis server binary"),
]
KEYS = {
    "url", "api_key", "tenant_key", "admin_user", "admin_password", "flower_url", "redis_url", "database_url",
    "pids",
}  # fmt: skip
PROCESSES = {
    "valkey", "demo", "web", "gpu_worker", "sweeps", "callbacks", "beat", "flower", "guard", "up",
}  # fmt: skip

LEFT_AT = datetime(2026, 11, 26, 10, 40, 42, tzinfo=UTC)
BEFORE = {
    "cancelled": 1, "completed": 17, "failed": 3, "queued": 1, "retrying": 1, "running": 5, "scheduled": 1,
}  # fmt: skip
AFTER = {"cancelled": 1, "completed": 23, "failed": 4, "scheduled": 1}
"""The job that was retrying fails in all its attempts."""
OWN_JOBS = 3
"""Those that the test submits."""


@pytest.fixture
def start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Up]]:
    started: list[Up] = []

    def start(folder: Path, *options: str, **named: Any) -> Up:
        started.append(Up(folder, *options, **named))
        return started[-1]

    yield start
    for running in started:
        if running.process.poll() is None:
            running.process.kill()
            running.process.wait()


def test_jobs_run_and_nothing_is_left_after_sigkill_or_ctrl_c(
    start: Callable[..., Up], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """On the demo fleet, and on models that `up` holds itself. The first start, on the folder of an older
    version, goes on with its jobs; the second knows the keys and the jobs of the first. Its processes are
    forked: that each starts as a program has been seen."""
    folder = tmp_path_factory.mktemp("u") / "var"
    leave_jobs_of_an_older_version(folder)
    assert states(folder) == BEFORE
    environment = {**SHORT_WAITS, "DISPATCHER_RECONCILE_SECONDS": "2"}
    up = start(folder, "--local", environment=environment)
    facts = up.facts()
    assert set(facts) == KEYS
    assert set(facts["pids"]) == PROCESSES | {"local"}
    for name in ("up.json", "up.env"):
        assert stat.S_IMODE((up.folder / name).stat().st_mode) == 0o600

    job = up.ask("/api/v1/queue/submit", {"model": "zimg", "payload": {"prompt": "a sunset"}})
    finished = up.ask(f"/api/v1/queue/jobs/{job['job_id']}?wait=60")
    assert finished["status"] == "completed"
    assert finished["result"]["model"] == "zimg"

    job = up.ask("/api/v1/queue/submit", {"model": "shout", "payload": {"text": "so it is"}})
    finished = up.ask(f"/api/v1/queue/jobs/{job['job_id']}?wait=60")
    assert (finished["status"], finished["result"]) == ("completed", {"text": "SO IT IS"})
    holding = _descendants(facts["pids"]["local"]) if sys.platform == "linux" else set()
    if sys.platform == "linux":
        assert len(holding) >= 2, "the model process and its warden"
        assert holding <= set(up.left()), "the guard finds them by their mark"

    assert _flower_workers(facts) >= {"gpu", "sweeps", "callbacks"}
    assert f"runs on {up.folder} already (process {up.process.pid})" in _second_up(up)

    job = up.ask("/api/v1/queue/submit", {"model": "zimg", "payload": {"seconds": 0.1}})
    up.kill(*holding)

    again = start(folder, environment=environment, forked=True)
    try:
        later = again.facts()
        assert set(later["pids"]) == PROCESSES
        for name in ("api_key", "tenant_key", "admin_password"):
            assert later[name] == facts[name]
        finished = again.ask(f"/api/v1/queue/jobs/{job['job_id']}?wait=60")
        assert finished["status"] == "completed"
        ended = {**AFTER, "completed": AFTER["completed"] + OWN_JOBS}
        wait_for(lambda: states(folder) == ended, seconds=120, what="the ends of the old jobs")
    finally:
        again.process.send_signal(signal.SIGINT)
        assert again.process.wait(90) == 0, again.output.read_text()
    assert not any(is_alive(pid) for pid in later["pids"].values())
    assert again.left() == []
    assert not (up.folder / "up.json").exists()
    assert not (up.folder / "up.env").exists()


def leave_jobs_of_an_older_version(folder: Path) -> None:
    folder.mkdir()
    dump = Path(__file__).parent / "old_data_folder" / "db.sql"
    with closing(sqlite3.connect(folder / "db.sqlite3")) as database:
        database.executescript(_as_of_now(dump.read_text()))


def _as_of_now(dump: str) -> str:
    """By whole hours, of which sums are kept."""
    later = timedelta(hours=(datetime.now(UTC) - LEFT_AT) // timedelta(hours=1))

    def moved(time: re.Match[str]) -> str:
        return f"'{datetime.fromisoformat(time[1]) + later}"

    return re.sub(r"'(20\d\d-\d\d-\d\d \d\d:\d\d:\d\d)", moved, dump)


def states(folder: Path) -> dict[str, int]:
    with closing(sqlite3.connect(folder / "db.sqlite3")) as database:
        return dict(Counter(state for (state,) in database.execute("SELECT state FROM jobs_job")))


def test_a_taken_port_is_named(tmp_path_factory: pytest.TempPathFactory) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        folder = str(tmp_path_factory.mktemp("u") / "var")
        done = subprocess.run(
            [sys.executable, "manage.py", "up", "--data-dir", folder, "--port", str(port)],
            cwd=ROOT,
            env={**os.environ, "DISPATCHER_NO_BOOTSTRAP": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 1
    assert f"port {port} is taken" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr


def _descendants(pid: int) -> set[int]:
    """Where there is /proc."""
    found: set[int] = set()
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in map(int, (task / "children").read_text().split()):
            found |= {child} | _descendants(child)
    return found


def _second_up(up: Up) -> str:
    second = Up(up.folder)
    assert second.process.wait(90) == 1
    return second.output.read_text()


def _flower_workers(facts: dict[str, Any]) -> set[str]:
    """The names before the dash and the host, such as gpu; refused without the password. The bare
    address leads to a page."""
    with pytest.raises(urllib.error.HTTPError, match="401"):
        urllib.request.urlopen(f"{facts['flower_url']}/workers?json=1", timeout=30)
    passwords = urllib.request.HTTPPasswordMgrWithDefaultRealm()
    passwords.add_password(None, facts["flower_url"], facts["admin_user"], facts["admin_password"])
    opener = urllib.request.build_opener(urllib.request.HTTPBasicAuthHandler(passwords))
    names: set[str] = set()

    with opener.open(facts["flower_url"], timeout=30) as response:
        assert response.url == f"{facts['flower_url']}/"

    def look() -> bool:
        with opener.open(f"{facts['flower_url']}/workers?json=1", timeout=30) as response:
            names.update(worker["hostname"].split("-")[0] for worker in json.load(response)["data"])
        return names >= {"gpu", "sweeps", "callbacks"}

    wait_for(look, seconds=60)
    return names
