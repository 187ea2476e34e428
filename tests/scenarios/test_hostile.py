"""The quick attacks of `prove --hostile`, in short, against the shared system: each of them is held."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from dispatcher_project.supervisor.data_folder import ROOT
from tests.support.system.running import System

pytestmark = pytest.mark.scenario

QUICK = ("X2", "s20", "s21", "s24", "n08")
"""Those whose own conditions show in half a second. How much the neighbour feels is judged by hand, on a
machine that does nothing else."""


def jobs_of(system: System) -> int:
    """How many there are, of all tenants."""
    found, url = 0, "/queue/jobs?limit=200"
    while url:
        page = system.operator.ask("GET", url)
        found += sum(len(value) for value in page.values() if isinstance(value, list))
        url = (page["next"] or "").partition("/api/v1")[2]
    return found


def test_the_quick_attacks_are_held(system: System, tmp_path: Path) -> None:
    before = jobs_of(system)
    short = ["--seconds", "0.5", "--quiet-seconds", "0.3", "--floor-ms", "20000"]
    where = ["--up-json", str(system.folder / "up.json"), "--report", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, "manage.py", "prove", "--hostile", "--attacks", ",".join(QUICK), *short, *where],
        cwd=ROOT,
        env={**os.environ, "DISPATCHER_NO_BOOTSTRAP": "1"},
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert done.returncode in (0, 1), done.stdout + done.stderr
    system.tenant.accepted += jobs_of(system) - before  # those of the trial's own tenants
    report = json.loads((tmp_path / "report.json").read_text())
    assert [one["attack"] for one in report["attacks"]] == list(QUICK), done.stdout
    assert {one["attack"]: one["wrong"] for one in report["attacks"] if one["wrong"]} == {}, done.stdout
    assert all(not one["skipped"] and one["neighbour"]["submits"] > 0 for one in report["attacks"]), (
        done.stdout
    )
    assert "s24" in (tmp_path / "report.html").read_text()
    assert "| s24" in (tmp_path / "report.md").read_text()
    assert done.returncode == 0, done.stdout
