"""`manage.py prove` for real, shortened: its own system, one fault, and a verdict."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from dispatcher_project.supervisor.data_folder import ROOT
from dispatcher_project.supervisor.embedded import die_with_parent, find_valkey
from dispatcher_project.supervisor.guard import marked_processes
from tests.support.waiting import wait_for
from verification.proving import main as proving
from verification.proving.seaweed import find_weed

pytestmark = [
    pytest.mark.scenario,
    pytest.mark.skipif(find_valkey() is None, reason="no Valkey or Redis server binary"),
]


def start(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "manage.py", "prove", "--data-dir", str(folder), *arguments],
        cwd=ROOT,
        env={**os.environ, "DISPATCHER_NO_BOOTSTRAP": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        preexec_fn=die_with_parent,  # noqa: PLW1509
    )


def processes_of(folder: Path) -> list[str]:
    """Return command lines that name the folder: processes of the trial carry no mark."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            if str(folder) in command:
                found.append(command)
    return found


@pytest.mark.by_hand
def test_gpu_servers_that_restart_cost_no_job(tmp_path: Path) -> None:
    folder = tmp_path / "var"
    trial = start(folder, "--jobs", "60", "--faults", "restart_server", "--seed", "4")
    output, _ = trial.communicate(timeout=250)
    report = json.loads((folder / "prove" / "report.json").read_text())
    assert report["wrong"] == [], output
    (fault,) = report["faults"]
    assert fault["affected_jobs"] > 0
    assert fault["recovery_seconds"] is not None, output
    # the duration depends on the machine's other work, the recovery does not
    assert [wrong for wrong in fault["wrong"] if "the bound is" not in wrong] == [], output
    totals = report["totals"]
    assert (totals["jobs_asked"], totals["jobs_accepted"]) == (60, 60)
    assert totals["requests_to_a_full_server"] == 0
    assert totals["callbacks_not_signed"] == 0
    assert report["conservation_checks"]["looked"] > 3
    assert len((folder / "prove" / "jobs.jsonl").read_text().splitlines()) == 60
    assert "restart_server" in (folder / "prove" / "report.html").read_text()
    assert trial.returncode == (1 if fault["wrong"] else 0), output
    assert marked_processes(f"{folder.resolve()}#") == []
    assert processes_of(folder) == []


@pytest.mark.by_hand
@pytest.mark.skipif(find_weed() is None, reason="no SeaweedFS on this machine")
def test_a_store_that_is_killed_costs_no_job_and_no_file(tmp_path: Path) -> None:
    pytest.importorskip("boto3")
    folder = tmp_path / "var"
    trial = start(
        folder, "--store", "s3", "--jobs", "30", "--shorten", "3", "--faults", "kill_store", "--seed", "6"
    )
    output, _ = trial.communicate(timeout=600)
    report = json.loads((folder / "prove" / "report.json").read_text())
    assert report["wrong"] == [], output
    (fault,) = report["faults"]
    assert fault["recovery_seconds"] is not None, output
    assert [wrong for wrong in fault["wrong"] if "the bound is" not in wrong] == [], output
    totals = report["totals"]
    assert totals["jobs_asked"] == totals["jobs_accepted"]
    assert totals["jobs_with_files"] >= 8
    assert totals["firings_of_schedules"]["started"] > 5
    assert processes_of(folder) == []


@pytest.mark.by_hand
@pytest.mark.parametrize(
    ("store", "faults"),
    [
        ("local", ("stop_writer", "full_folder", "kill_writer")),
        ("s3", ("kill_store_in_part", "stop_store_between_parts", "full_store_completing")),
    ],
)
def test_a_store_that_fails_in_a_workers_output_costs_no_file(
    tmp_path: Path, store: str, faults: tuple[str, ...]
) -> None:
    if store == "s3" and find_weed() is None:
        pytest.skip("no SeaweedFS on this machine")
    folder = tmp_path / "var"
    names = ("--faults", ",".join(faults))
    trial = start(folder, "--store", store, "--jobs", "60", "--shorten", "5", "--seed", "6", *names)
    output, _ = trial.communicate(timeout=600)
    report = json.loads((folder / "prove" / "report.json").read_text())
    assert report["wrong"] == [], output
    for fault in report["faults"]:
        assert fault["skipped"] == "", output
        assert [wrong for wrong in fault["wrong"] if "the bound is" not in wrong] == [], output
    assert processes_of(folder) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_an_aborted_trial_leaves_no_process(tmp_path: Path, number: signal.Signals) -> None:
    folder = tmp_path / "var"
    trial = start(folder, "--jobs", "60", "--faults", "none")
    wait_for(lambda: marked_processes(f"{folder.resolve()}#"), seconds=60, what="a dispatcher that starts")
    trial.send_signal(number)
    assert trial.wait(60) == (3 if number is signal.SIGINT else -number)
    wait_for(lambda: not marked_processes(f"{folder.resolve()}#"), what="an end of the dispatcher")
    wait_for(lambda: not processes_of(folder), what="an end of what the trial started")


def test_a_swallowed_interrupt_is_raised_again(monkeypatch: pytest.MonkeyPatch) -> None:
    timers: list[float] = []
    monkeypatch.setattr(proving.signal, "setitimer", lambda which, seconds: timers.append(seconds))

    def trial(options: object) -> None:
        with contextlib.suppress(KeyboardInterrupt):  # as Python does in a finaliser
            signal.getsignal(signal.SIGINT)(signal.SIGINT, None)  # type: ignore[operator,misc]
        assert len(timers) == 1
        signal.getsignal(signal.SIGALRM)(signal.SIGALRM, None)  # type: ignore[operator,misc]

    monkeypatch.setattr(proving, "Trial", trial)
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)}
    try:
        assert proving.main(["--jobs", "1"]) == proving.ABORTED
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert timers[-1] == 0
