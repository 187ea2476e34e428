"""`manage.py up` as a user meets it: real processes, real ports, a job through the demo fleet."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dispatcher_project.supervisor.data_folder import ROOT
from dispatcher_project.supervisor.embedded import find_valkey
from dispatcher_project.supervisor.guard import marked_processes
from tests.dispatcher_project.supervisor.conftest import is_alive, wait_until
from tests.ports import free_port

pytestmark = [
    pytest.mark.scenario,
    pytest.mark.skipif(find_valkey() is None, reason="no Valkey or Redis server binary"),
]
KEYS = {
    "url", "api_key", "tenant_key", "admin_user", "admin_password", "flower_url", "redis_url", "database_url",
    "pids",
}  # fmt: skip
LEFT_SECONDS = 10.0
"""After SIGKILL nothing of a run lives longer than this."""
PROCESSES = {
    "valkey", "demo", "web", "gpu_worker", "sweeps", "callbacks", "beat", "flower", "guard", "up",
}  # fmt: skip


class Up:
    """A running `up` on a folder of its own."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.folder = folder
        self.output = folder.parent / f"{folder.name}.out"
        self.port = free_port()
        command = [sys.executable, "manage.py", "up", "--data-dir", str(folder), "--port", str(self.port)]
        ours = ("REDIS_URL", "BROKER_URL", "DATABASE_URL", "DJANGO_SETTINGS_MODULE")
        environment = {name: value for name, value in os.environ.items() if name not in ours}
        with self.output.open("wb") as output:
            self.process = subprocess.Popen(
                [*command, *options],
                cwd=ROOT,
                env={**environment, "DISPATCHER_NO_BOOTSTRAP": "1"},
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def facts(self) -> dict[str, Any]:
        """up.json, once it is there."""
        path = self.folder / "up.json"
        wait_until(lambda: path.exists() or self.process.poll() is not None, seconds=120)
        assert path.exists(), self.output.read_text()
        return dict(json.loads(path.read_text()))

    def left(self) -> list[int]:
        """Processes of this run that live."""
        return [pid for pid in marked_processes(f"{self.folder}#") if is_alive(pid)]

    def kill(self, *others: int) -> None:
        """SIGKILL; fails if one of its processes, or of the others, outlives it."""
        pids = {*self.facts()["pids"].values(), *others}
        self.process.kill()
        self.process.wait()
        wait_until(lambda: not self.left() and not any(map(is_alive, pids)), seconds=LEFT_SECONDS)
        assert not (self.folder / "up.json").exists()


@pytest.fixture
def start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Up]]:
    started: list[Up] = []

    def start(*options: str) -> Up:
        started.append(Up(tmp_path_factory.mktemp("u") / "var", *options))
        return started[-1]

    yield start
    for running in started:
        if running.process.poll() is None:
            running.process.kill()
            running.process.wait()


def test_jobs_run_and_nothing_is_left_after_sigkill_or_ctrl_c(start: Callable[..., Up]) -> None:
    """On the demo fleet, and on models that `up` holds itself. The second start, on the folder of the first,
    knows its keys and its jobs."""
    up = start("--local")
    facts = up.facts()
    assert set(facts) == KEYS
    assert set(facts["pids"]) == PROCESSES | {"local"}
    assert stat.S_IMODE((up.folder / "up.json").stat().st_mode) == 0o600

    job = _ask(facts, "/api/v1/queue/submit", {"model": "zimg", "payload": {"prompt": "a sunset"}})
    finished = _ask(facts, f"/api/v1/queue/jobs/{job['job_id']}?wait=60")
    assert finished["status"] == "completed"
    assert finished["result"]["model"] == "zimg"

    job = _ask(facts, "/api/v1/queue/submit", {"model": "shout", "payload": {"text": "so it is"}})
    finished = _ask(facts, f"/api/v1/queue/jobs/{job['job_id']}?wait=60")
    assert (finished["status"], finished["result"]) == ("completed", {"text": "SO IT IS"})
    holding = _descendants(facts["pids"]["local"]) if sys.platform == "linux" else set()
    if sys.platform == "linux":
        assert len(holding) >= 2, "the model process and its warden"
        assert holding <= set(up.left()), "the guard finds them by their mark"

    assert _flower_workers(facts) >= {"gpu", "sweeps", "callbacks"}
    assert f"runs on {up.folder} already (process {up.process.pid})" in _second_up(up)

    job = _ask(facts, "/api/v1/queue/submit", {"model": "zimg", "payload": {"seconds": 0.1}})
    up.kill(*holding)

    again = Up(up.folder)
    try:
        later = again.facts()
        assert set(later["pids"]) == PROCESSES
        for name in ("api_key", "tenant_key", "admin_password"):
            assert later[name] == facts[name]
        finished = _ask(later, f"/api/v1/queue/jobs/{job['job_id']}?wait=60")
        assert finished["status"] == "completed"
    finally:
        again.process.send_signal(signal.SIGINT)
        assert again.process.wait(90) == 0, again.output.read_text()
    assert not any(is_alive(pid) for pid in later["pids"].values())
    assert again.left() == []
    assert not (up.folder / "up.json").exists()


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


def _ask(facts: dict[str, Any], path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    request = urllib.request.Request(
        facts["url"] + path,
        data=json.dumps(body).encode() if body is not None else None,
        headers={"Authorization": f"Bearer {facts['tenant_key']}", "Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=90) as response:
        return dict(json.load(response))


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

    wait_until(look, seconds=60)
    return names
