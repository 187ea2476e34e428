from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.util import cache_from_source
from pathlib import Path
from typing import Any

import pytest

from dispatcher_project import checks
from dispatcher_project.checks import (
    _PYTEST_SUMMARY,
    DATABASE_VARIABLE,
    Outcome,
    pytest_command,
    summary,
)
from dispatcher_project.supervisor.data_folder import ROOT
from tests import conftest


def test_the_summary_ends_with_pytests_own_lines_and_the_verdict() -> None:
    text = summary(
        [
            Outcome("mypy", 1, 2.0),
            Outcome("pytest on SQLite", 0, 60.0, "12 passed, 1 skipped in 58.20s"),
            Outcome("pytest on PostgreSQL", 0, 0.0, "skipped: no server"),
        ],
        seconds=62,
    )
    assert text.splitlines()[-4:] == [
        "FAILED   mypy                      2.0 s",
        "ok       pytest on SQLite         60.0 s  12 passed, 1 skipped in 58.20s",
        "skipped  pytest on PostgreSQL      0.0 s  skipped: no server",
        "1 of 3 checks failed in 62 s",
    ]


@pytest.mark.parametrize(
    ("line", "is_summary"),
    [
        ("12 passed, 1 skipped in 58.20s", True),
        ("=== 1 failed, 2 passed in 0.10s ===", True),
        ("no tests ran in 0.01s", True),
        ("FAILED tests/test_x.py::test_it_passed - assert 1", False),
        ("..... [100%]", False),
    ],
)
def test_pytests_summary_line_is_recognised(line: str, is_summary: bool) -> None:
    assert bool(_PYTEST_SUMMARY.search(line)) is is_summary


_LEAN = ("-p", "no:cacheprovider", "-p", "no:django")
"""Options of a pytest that needs no Django."""


def test_arguments_go_to_pytest_and_its_failure_is_ours(tmp_path: Path) -> None:
    """Were all runs failures, the gate itself would be one."""
    (tmp_path / "test_it.py").write_text("def test_it():\n    assert False\n")
    done = subprocess.run(
        [sys.executable, "manage.py", "test", str(tmp_path), "-n0", *_LEAN],
        cwd=ROOT,
        env={**os.environ, "DISPATCHER_NO_BOOTSTRAP": "1", "DISPATCHER_TEST_DATABASE_URL": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stdout
    assert re.search(r"^FAILED +pytest on SQLite .*1 failed in", done.stdout, re.MULTILINE)
    assert "mypy" not in done.stdout


@pytest.mark.parametrize("arguments", [["--help"], ["tests/jobs", "-h"]])
def test_help_names_the_variable_and_runs_nothing(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(checks, "_started", None)
    assert checks.main(arguments) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("usage: manage.py test ")
    assert DATABASE_VARIABLE in shown
    assert "-m pytest --help" in shown
    assert "passed in" not in shown
    assert max(map(len, shown.splitlines())) <= 112


def test_pytest_uses_all_cores_unless_given_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    monkeypatch.setattr(sys, "platform", "linux")
    assert pytest_command(["tests"])[3:7] == ["-p", "tests.support.forked.plugin", "--forks", "12"]
    assert "--forks" not in pytest_command(["-n0", "tests"])
    monkeypatch.setattr(sys, "platform", "darwin")
    assert pytest_command(["tests"])[3:7] == ["-n", "12", "--dist", "worksteal"]
    assert "--dist" not in pytest_command(["-n0", "tests"])


@pytest.mark.parametrize("is_first", [True, False])
def test_in_the_first_run_one_process_compiles_for_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_first: bool
) -> None:
    """In later ones none waits for the other."""
    collected, other = tmp_path / "collected", tmp_path / "other"
    started = list[tuple[bool, bool]]()
    scripts = {
        True: f"print('.', flush=True)\nopen({str(other)!r}, 'w')",
        False: f"""
import os, time
until = time.monotonic() + 30
while time.monotonic() < until and not ({is_first} or os.path.exists({str(other)!r})):
    time.sleep(0.01)
time.sleep(0.2)
open({str(collected)!r}, 'w')
print('.', flush=True)
""",
    }

    def start(command: list[str], environment: dict[str, str]) -> subprocess.Popen[str]:
        on_postgresql = bool(environment[DATABASE_VARIABLE])
        started.append((on_postgresql, collected.exists()))
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        return subprocess.Popen([sys.executable, "-S", "-c", scripts[on_postgresql]], text=True, **pipes)

    monkeypatch.setattr(sys, "pycache_prefix", str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    monkeypatch.setattr(checks, "_started", start)
    if not is_first:
        compiled = Path(cache_from_source(str(ROOT / "tests" / "support" / "factories.py")))
        compiled.parent.mkdir(parents=True)
        compiled.touch()
    outcomes = checks._on_both((), "postgresql://somewhere")
    assert [one.exit_code for one in outcomes] == [0, 0]
    assert started == [(False, False), (True, is_first)]


def test_postgresql_gets_the_files_with_a_marked_test_and_runs_only_those_tests() -> None:
    files = checks.marked_files()
    assert "tests/foundation/database/test_statements.py" in files, "marked as a whole"
    assert "tests/jobs/api/test_write_lock.py" in files, "has one marked test"
    assert "tests/jobs/domain/test_retry.py" not in files
    assert all((ROOT / file).is_file() for file in files)


def test_a_test_of_one_databases_own_ways_runs_on_both() -> None:
    """Without the mark its part for PostgreSQL would run nowhere."""
    marked = set(checks.marked_files())
    for file in set((ROOT / "tests").rglob("test_*.py")) - {Path(__file__)}:
        name = str(file.relative_to(ROOT))
        assert name in marked or "connection.vendor" not in file.read_text(), name


class Item:
    """What the order asks of a test."""

    def __init__(self, nodeid: str, *marks: str, shared: bool = False) -> None:
        self.nodeid, self.marks = nodeid, marks
        self.fixturenames = ["shared_system"] if shared else []

    def get_closest_marker(self, name: str) -> str | None:
        return name if name in self.marks else None


@pytest.mark.parametrize("others", range(30, 34))
def test_scenarios_of_one_system_begin_the_share_of_one_process(
    monkeypatch: pytest.MonkeyPatch, others: int
) -> None:
    """Else each process that plays one of them starts that system."""
    monkeypatch.setenv("PYTEST_XDIST_WORKER_COUNT", "4")
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    items: Any = [
        *(Item(f"o.py::{number}") for number in range(others)),
        *(Item(f"s.py::{number}", "scenario", shared=True) for number in range(5)),
        *(Item(f"l.py::{number}", "long") for number in range(3)),
        *(Item(f"t.py::{number}", "scenario") for number in range(3)),
    ]
    pending = conftest._waiting_ones_first(items)
    assert sorted(one.nodeid for one in pending) == sorted(one.nodeid for one in items)
    shares = []
    for left in range(4, 0, -1):  # as xdist's WorkStealingScheduling does
        size = len(pending) // left
        shares.append([one.nodeid.partition("::")[0] for one in pending[:size]])
        del pending[:size]
    assert [share[:5].count("s.py") for share in shares] == [0, 0, 5, 0]
    assert [share[0] for share in shares] == ["l.py", "l.py", "s.py", "t.py"]


def test_deselected_tests_have_no_share() -> None:
    """xdist cuts what `-m` leaves."""
    assert conftest.pytest_collection_modifyitems.pytest_impl["trylast"]  # type: ignore[attr-defined]
