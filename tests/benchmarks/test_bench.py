"""`manage.py bench` for real, shortened: the raw limit, Ctrl-C; by hand the dispatcher too."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.suite.contenders import Scripted
from benchmarks.suite.environment import SQLITE, BenchEnvironment
from benchmarks.suite.peers import RAW
from benchmarks.suite.utilisation import run_jobs, spread_out
from dispatcher_project.supervisor.data_folder import ROOT
from dispatcher_project.supervisor.embedded import die_with_parent, find_valkey
from tests.support.waiting import wait_for

pytestmark = [
    pytest.mark.scenario,
    pytest.mark.skipif(find_valkey() is None, reason="no Valkey or Redis server binary"),
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc"),
]


@pytest.fixture
def short_path() -> Iterator[Path]:
    """Unix sockets lie below it: pytest's own folders have names too long for them."""
    with tempfile.TemporaryDirectory(prefix="b") as folder:
        yield Path(folder)


def start(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    (folder / "tmp").mkdir()
    return subprocess.Popen(
        [
            sys.executable,
            "manage.py",
            "bench",
            *arguments,
            "--report",
            str(folder / "report"),
            "--database",
            SQLITE,
        ],
        cwd=ROOT,
        env={**os.environ, "DISPATCHER_NO_BOOTSTRAP": "1", "TMPDIR": str(folder / "tmp")},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        preexec_fn=die_with_parent,  # noqa: PLW1509
    )


def processes_of(folder: Path) -> list[str]:
    """Return the command lines and folders of related processes, by how they were started."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                results = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
            except OSError:
                continue
            if str(folder).encode() in results:
                found.append(results.replace(b"\0", b" ").decode(errors="replace")[:200])
    return found


def test_the_raw_limit_runs_each_job_once_and_keeps_the_slots_busy():
    env = BenchEnvironment(SQLITE)
    contender = Scripted(env, RAW)
    try:
        contender.start(4)
        found = run_jobs(env.gpu, contender, spread_out(0, 400, 0.02, 4), 4)  # CPU counts in 10 ms
    finally:
        contender.stop()
        env.close()
    assert (found["wrong"], found["jobs"]) == ([], 400)
    assert 0.0 < found["utilisation"] <= 1.0
    assert found["cpu_ms_per_job"] > 0.0
    assert not env.folder.exists()


def test_ctrl_c_leaves_no_process_and_no_folder(short_path: Path):
    bench = start(short_path, "startup")
    wait_for(lambda: bench.poll() is not None or len(processes_of(short_path)) > 3, what="`up` under it")
    bench.send_signal(signal.SIGINT)
    output, _ = bench.communicate(timeout=250)
    assert bench.returncode == 3, output
    assert "broken off" in output
    wait_for(lambda: not processes_of(short_path), what="an end of all that it started")
    assert list((short_path / "tmp").iterdir()) == []


@pytest.mark.by_hand
def test_us_and_the_raw_limit_side_by_side(short_path: Path):
    bench = start(short_path, "utilisation", "--against", "none", "--rounds", "1", "--seconds", "1")
    output, _ = bench.communicate(timeout=250)
    assert bench.returncode == 0, output
    found = json.loads((short_path / "report" / "bench.json").read_text())
    assert found["wrong"] == []
    assert set(found["results"]["utilisation"]["contenders"]) == {"dispatcher", "raw"}
    assert (short_path / "report" / "bench.html").read_text().startswith("<!doctype html>")
    assert processes_of(short_path) == []
    assert list((short_path / "tmp").iterdir()) == []
