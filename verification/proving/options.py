"""The command line of `manage.py prove`."""

from __future__ import annotations

import argparse
import os
import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from dispatcher_project.cli.arguments import positive
from foundation.program import usage_name

JOBS = 2000
HOSTILE = "--hostile"


@dataclass(frozen=True, slots=True)
class Options:
    """The options of a trial.

    faults: names in the order of the trial, None for all. data_dir, report: None for the default. url and
    api_key, or up_json: a dispatcher that runs already; without them the trial starts its own. database:
    empty for SQLite, ``own`` for a PostgreSQL started by the trial, or a URL. redis: empty for one Valkey,
    ``sentinel`` or ``cluster``. store: empty for a local folder, or ``s3``.
    """

    jobs: int = JOBS
    minutes: float = 0.0
    seed: int = 0
    shorten: float = 1.0
    faults: tuple[str, ...] | None = None
    url: str = ""
    api_key: str = ""
    up_json: Path | None = None
    report: Path | None = None
    data_dir: Path | None = None
    database: str = ""
    redis: str = ""
    store: str = ""

    @property
    def starts_its_own(self) -> bool:
        """True if the command starts its own dispatcher."""
        return not self.url and self.up_json is None


def parser() -> argparse.ArgumentParser:
    """Return the command line of `prove`."""
    arguments = argparse.ArgumentParser(
        prog=usage_name("prove"),
        description="Inject all kinds of faults into a dispatcher under load, and compare the records of "
        "clients, database, GPU servers and callback receiver. Exit status 0: no finding.",
    )
    arguments.add_argument(
        HOSTILE, action="store_true", help="run attacks instead (`prove --hostile --help`)"
    )
    arguments.add_argument("--jobs", type=positive, default=JOBS, help="number of jobs (default %(default)s)")
    arguments.add_argument(
        "--minutes", type=float, default=0.0, help="repeat the faults for this many minutes"
    )
    arguments.add_argument("--seed", type=int, help="repeat the load of another trial (default: random)")
    arguments.add_argument(
        "--shorten", type=float, default=1.0, metavar="N", help="divide the duration of jobs by N"
    )
    arguments.add_argument("--faults", help="comma-separated names, `none`, or `all` (the default)")
    arguments.add_argument("--url", default="", help="URL of a running dispatcher; needs --api-key")
    arguments.add_argument(
        "--api-key", default=os.environ.get("DISPATCHER_API_KEY", ""), help="operator key for --url"
    )
    arguments.add_argument("--up-json", type=Path, help="the up.json of a dispatcher on this machine")
    arguments.add_argument("--report", type=Path, help="folder of the report (default <data-dir>/prove)")
    arguments.add_argument("--data-dir", type=Path, help="of the trial's own system (default: a new one)")
    arguments.add_argument(
        "--database", default="", help="PostgreSQL URL of the trial's own system, or `own` (default: SQLite)"
    )
    arguments.add_argument(
        "--redis",
        choices=["single", "sentinel", "cluster"],
        default="single",
        help="the Redis of the trial's own system: one Valkey, a master and a replica under three Sentinels, "
        "or a cluster of three nodes",
    )
    arguments.add_argument(
        "--store",
        choices=["local", "s3"],
        default="local",
        help="the store of artifacts of the trial's own system: a local folder, or a SeaweedFS of the trial "
        "(S3), which can be killed, stopped, slow and full",
    )
    return arguments


def read_options(arguments: Sequence[str], known: Sequence[str]) -> Options:
    """Parse the command line; exit with status 2 and one line for invalid options. known: names of all
    faults."""
    given = parser().parse_args(arguments)
    if given.url and given.up_json:
        _refuse("give either --url or --up-json")
    if given.url and not given.api_key:
        _refuse("--url needs --api-key (or DISPATCHER_API_KEY), of the operator kind")
    if not 1.0 <= given.shorten <= 100.0:
        _refuse("--shorten is a number from 1 to 100")
    if given.up_json is not None and not given.up_json.is_file():
        _refuse(f"there is no {given.up_json}: does that dispatcher run?")
    if (given.url or given.up_json) and (given.database or given.data_dir):
        _refuse("--database and --data-dir are for a system that the trial starts itself")
    if (given.url or given.up_json) and given.redis != "single":
        _refuse("--redis is for a system that the trial starts itself")
    if (given.url or given.up_json) and given.store != "local":
        _refuse("--store is for a system that the trial starts itself")
    if given.database not in ("", "own") and not given.database.startswith(("postgresql://", "postgres://")):
        _refuse("--database is a postgresql:// URL, or `own`")
    return Options(
        jobs=given.jobs,
        minutes=given.minutes,
        seed=random.SystemRandom().randrange(1_000_000) if given.seed is None else given.seed,
        shorten=given.shorten,
        faults=_faults(given.faults, known),
        url=given.url.rstrip("/"),
        api_key=given.api_key,
        up_json=given.up_json,
        report=given.report,
        data_dir=given.data_dir,
        database=given.database,
        redis="" if given.redis == "single" else given.redis,
        store="" if given.store == "local" else given.store,
    )


def _faults(text: str | None, known: Sequence[str]) -> tuple[str, ...] | None:
    if text is None or text == "all":
        return None
    if text == "none":
        return ()
    names = tuple(part.strip() for part in text.split(",") if part.strip())
    unknown = [name for name in names if name not in known]
    if unknown or not names:
        _refuse(f"unknown fault {', '.join(unknown) or repr(text)}; known are {', '.join(known)}")
    return names


def _refuse(why: str) -> NoReturn:
    """Print one line, without the usage text that would hide it."""
    sys.stderr.write(f"prove: {why}\n")
    raise SystemExit(2)
