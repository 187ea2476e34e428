"""A fleet far larger than this machine, with the real Lua scripts and the real services under virtual time:
its throughput, the cost of each job, and so the capacity of each part.

    python -m benchmarks.big_fleet                                     1,000 slots, about a minute
    python -m benchmarks.big_fleet --database postgresql://postgres@127.0.0.1:5432/postgres
    python -m benchmarks.big_fleet --slots 10000 --models 100 --tenants 1000 --waiting 1000000 --seconds 300

Two layers in turn: the scripts alone, called by one client; then everything (submits, claims, runs, group
commits, renewals, sweeps) in this one process, with GPUs that only pause. Real seconds are the cost, virtual
seconds the throughput: the virtual world has unlimited processors. --database: a PostgreSQL server, where a
database is created and dropped; else SQLite in a file. --fleets: pools are spread over so many. Linux:
processor time is read from /proc.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.big_fleet_load import Load, Size
from benchmarks.databases import own_database
from dispatcher_project.supervisor.embedded import EmbeddedValkey

_WHOLE = ("slots", "models", "tenants", "waiting", "models_per_pool", "slots_per_server", "slots_per_worker",
          "fleets", "seed")  # fmt: skip


def main() -> None:
    arguments = _parser().parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # SIGTERM must drop its database too
    try:
        size = Size(**{field.name: getattr(arguments, field.name) for field in fields(Size)})
    except ValueError as error:
        raise SystemExit(f"big_fleet: {error}") from None
    with tempfile.TemporaryDirectory() as folder:
        found: dict[str, Any] = {"size": asdict(size)}
        with _database(arguments.database, folder) as url:
            _set_up(url, folder)
            from benchmarks.big_fleet_report import say
            from benchmarks.big_fleet_run import run_services
            from benchmarks.big_fleet_scripts import run_scripts

            progress = _no_progress if arguments.quiet else _progress
            if not arguments.only or arguments.only == "scripts":
                progress("the scripts alone")
                with EmbeddedValkey(Path(folder, "scripts"), append_only=False) as valkey:
                    found["scripts"] = run_scripts(
                        Load(size), _connect_with_long_timeout(valkey.url), valkey.pid or 0
                    )
            if not arguments.only or arguments.only == "services":
                with EmbeddedValkey(Path(folder, "services"), append_only=False) as valkey:
                    os.environ["REDIS_URL"] = valkey.url
                    found["services"] = run_services(
                        Load(size),
                        _connect_with_long_timeout(valkey.url),
                        valkey,
                        progress,
                        rebuild=arguments.rebuild,
                    )
        say(found)
        if arguments.json:
            arguments.json.write_text(json.dumps(found, indent=1))


def _database(server: str, folder: str) -> AbstractContextManager[str]:
    if server:
        return own_database(server, f"dispatcher_big_fleet_{os.getpid()}")
    return nullcontext(f"sqlite:///{folder}/db.sqlite3")


def _set_up(url: str, folder: str) -> None:
    os.environ.update(
        DJANGO_SETTINGS_MODULE="dispatcher_project.settings.base",
        DATABASE_URL=url,
        DISPATCHER_DATA_DIR=folder,
        DISPATCHER_LOG_LEVEL="CRITICAL",
        DISPATCHER_PAGES="false",
        DJANGO_SECRET_KEY="the benchmark keeps no secrets " + "x" * 20,
    )
    import django
    from django.core.management import call_command

    django.setup()
    call_command("migrate", verbosity=0, interactive=False)


def _connect_with_long_timeout(url: str) -> Any:
    """The product gives Redis two seconds; a benchmark on a busy machine needs more."""
    import redis

    return redis.Redis.from_url(url, socket_timeout=120.0, decode_responses=True)


def _progress(what: str) -> None:
    print(what, file=sys.stderr, flush=True)


def _no_progress(what: str) -> None:
    pass


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    size = Size()
    for field in fields(Size):
        kind = int if field.name in _WHOLE else float
        default = getattr(size, field.name)
        name = f"--{field.name.replace('_', '-')}"
        parser.add_argument(name, type=kind, default=default, help=f"default {default:g}")
    parser.add_argument("--database", default="", metavar="URL", help="a PostgreSQL server; default SQLite")
    parser.add_argument("--only", choices=("scripts", "services"), default="", help="one layer")
    parser.add_argument("--rebuild", action="store_true", help="at the end flush Redis, and time the rebuild")
    parser.add_argument("--json", type=Path, metavar="FILE", help="all figures")
    parser.add_argument("--quiet", action="store_true", help="no progress")
    return parser


if __name__ == "__main__":
    main()
