"""The command line of `manage.py bench`."""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from dispatcher_project.supervisor.data_folder import default_folder
from foundation.program import usage_name

from .environment import OWN, SQLITE
from .peers import PEERS, available_peers

BENCHMARKS = {
    "utilisation": "8 slots, jobs of 20, 100 and 500 ms: dispatcher, raw limit and peers in turn",
    "submit": "submitted requests and jobs per second, and their latency under load",
    "claim": "Redis time of a release-and-claim by queue size (benchmarks/claim.py)",
    "end-to-end": "from accepted to running, from finished to called back, on an idle fleet",
    "memory": "a worker's memory over many jobs",
    "startup": "`up` until it is ready, and commands",
    "idle": "memory and CPU of `up` at rest, with its demo fleet",
    "pinned": "a killed pinned worker's job on another one; a pinned worker that is switched on",
    "newcomer": "jobs right after `up`, and a GPU server that writes head and body apart",
    "fleet": "1,000 slots with long jobs, two worker processes",
    "polling": "200 async jobs polled by one worker process",
    "workflows": "chains, edges, maps and their cancel, beside Celery's canvas and Procrastinate",
    "schedules": "10,000 schedules due in one minute while their sweepers are killed ten times",
    "cost": "cost of one job: Redis commands, transactions, bytes, CPU by process",
}
ROUNDS = 5
_MAX_ROUNDS, _MAX_SECONDS, _MAX_JOBS = 100, 3600.0, 10_000_000


@dataclass(frozen=True, slots=True)
class Options:
    """The options of a run.

    against: None for every peer that is set up. jobs, seconds: 0 for each benchmark's own. setup: peers to
    set up, without measuring; page: write docs from the report, without measuring. database: ``own`` (a
    PostgreSQL for this run), ``sqlite`` or a URL."""

    benchmarks: tuple[str, ...] = tuple(BENCHMARKS)
    against: tuple[str, ...] | None = None
    rounds: int = ROUNDS
    jobs: int = 0
    seconds: float = 0.0
    database: str = OWN
    report: Path = Path()
    setup: tuple[str, ...] | None = None
    page: bool = False
    check: bool = False


def parser() -> argparse.ArgumentParser:
    arguments = argparse.ArgumentParser(
        prog=usage_name("bench"),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Compare the dispatcher with the raw limit and its peers, on one simulated GPU server "
        "by whose log they are judged.\n\n"
        + "\n".join(f"  {name:<12} {what}" for name, what in BENCHMARKS.items()),
    )
    arguments.add_argument(
        "benchmarks",
        nargs="*",
        metavar="BENCHMARK",
        help="benchmarks, separated by commas or spaces (default: all)",
    )
    arguments.add_argument(
        "--against",
        nargs="+",
        metavar="PEERS",
        help=f"peers among {', '.join(PEERS)}, or `none` (default: those that are set up)",
    )
    arguments.add_argument("--rounds", help=f"rounds of each contender, in turn (default {ROUNDS})")
    arguments.add_argument("--jobs", help="jobs per measurement (default: enough for the seconds)")
    arguments.add_argument("--seconds", help="seconds per measurement (default: each benchmark's own)")
    arguments.add_argument(
        "--database", help="postgresql:// URL, `own` (a PostgreSQL for this run; the default) or `sqlite`"
    )
    arguments.add_argument("--report", type=Path, help="folder of the results (default var/bench/report)")
    arguments.add_argument(
        "--setup", nargs="*", metavar="PEER", help="install peers into var/bench, measure nothing"
    )
    arguments.add_argument(
        "--page", action="store_true", help="write the report's figures and plots into docs/, measure nothing"
    )
    arguments.add_argument("--check", action="store_true", help="exit status 1 if a goal is missed")
    return arguments


def read_options(arguments: Sequence[str]) -> Options:
    """Parse the command line; exit with status 2 and one line for invalid options."""
    given = parser().parse_args(arguments)
    database = given.database or (OWN if _has_postgresql() else SQLITE)
    if database not in (OWN, SQLITE) and not database.startswith(("postgresql://", "postgres://")):
        _refuse("--database is a postgresql:// URL, `own` or `sqlite`")
    against = None if given.against is None else _split(given.against)
    # the parser takes all words that follow
    late = [name for name in against or () if name in BENCHMARKS]
    return Options(
        benchmarks=_names("benchmark", [*_split(given.benchmarks), *late], BENCHMARKS) or tuple(BENCHMARKS),
        against=None if against is None else _against([name for name in against if name not in late]),
        rounds=int(_number("--rounds", given.rounds, ROUNDS, _MAX_ROUNDS, whole=True)),
        jobs=int(_number("--jobs", given.jobs, 0, _MAX_JOBS, whole=True)),
        seconds=_number("--seconds", given.seconds, 0.0, _MAX_SECONDS),
        database=database,
        report=(given.report or default_folder() / "bench" / "report").resolve(),
        setup=None
        if given.setup is None
        else _names("peer", _split(given.setup), available_peers()) or tuple(available_peers()),
        page=given.page,
        check=given.check,
    )


def _has_postgresql() -> bool:
    return bool(shutil.which("postgres") or any(Path("/usr/lib/postgresql").glob("*/bin/postgres")))


def _split(words: Sequence[str]) -> list[str]:
    """``["a,b", "c"]`` → ``["a", "b", "c"]``"""
    return " ".join(words).replace(",", " ").split()


def _against(given: Sequence[str]) -> tuple[str, ...]:
    if list(given) == ["none"]:
        return ()
    names = _names("peer", given, PEERS)
    return names or _refuse("--against names no peer; `none` measures us and the raw limit alone")


def _names(kind: str, given: Sequence[str], known: object) -> tuple[str, ...]:
    assert isinstance(known, dict)
    unknown = [name for name in given if name not in known]
    if unknown:
        _refuse(f"unknown {kind} {', '.join(unknown)}; known are {', '.join(known)}")
    return tuple(dict.fromkeys(given))


def _number(name: str, text: str | None, default: float, most: float, *, whole: bool = False) -> float:
    if text is None:
        return default
    kind = "whole number" if whole else "number"
    try:
        found = float(int(text)) if whole else float(text)
    except ValueError:
        _refuse(f"{name} is a {kind}, not {text!r}")
    if not 0 < found <= most:  # also rejects NaN
        _refuse(f"{name} is a {kind} above 0, at most {most:g}")
    return found


def _refuse(why: str) -> NoReturn:
    """Print one line, without the usage text that would hide it."""
    sys.stderr.write(f"bench: {why}\n")
    raise SystemExit(2)
