"""Latency of the admin's lists over a million jobs: p95 of each page, through Django, on PostgreSQL.

    .venv/bin/python -m benchmarks.admin_lists                   fills a database, drops it afterwards
    .venv/bin/python -m benchmarks.admin_lists --keep            leaves it for the next call, which reuses it
    .venv/bin/python -m benchmarks.admin_lists --only callback   only pages with this in their name

The server is that of --server, else of DISPATCHER_TEST_DATABASE_URL. p50 and p95 are of the whole request:
queries, templates, everything but the network; `python` is this process' own CPU time of a typical one. The
machine should be idle otherwise. Exit status 1 if a page's p95 exceeds --goal-ms.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.databases import LOCAL, own_database

DATABASE = "dispatcher_admin_lists"


def main() -> int:
    arguments = _parser().parse_args()
    with own_database(arguments.server, DATABASE, keep=arguments.keep) as url:
        os.environ["DISPATCHER_TEST_DATABASE_URL"] = url
        os.environ.setdefault("DISPATCHER_LOG_LEVEL", "CRITICAL")
        os.environ["DJANGO_SETTINGS_MODULE"] = "dispatcher_project.settings.test"
        import django

        django.setup()
        from django.core.management import call_command

        call_command("migrate", verbosity=0, interactive=False)
        _fill(arguments.jobs)
        return _measure(arguments)


def _fill(jobs: int) -> None:
    from benchmarks.admin_lists_data import fill
    from jobs.models import Job

    found = Job.objects.count()
    if found:
        print(f"{found:,} jobs are there already")
        return
    began = time.monotonic()
    fill(jobs)
    print(f"filled with {jobs:,} jobs in {time.monotonic() - began:.0f} s")


def _measure(arguments: argparse.Namespace) -> int:
    from django.contrib.auth.models import User
    from django.db import connection
    from django.test import Client
    from django.test.utils import (
        CaptureQueriesContext,
        setup_test_environment,
        teardown_test_environment,
    )

    from benchmarks.admin_lists_pages import pages

    client = Client()
    client.force_login(User.objects.get_or_create(username="boss", is_staff=True, is_superuser=True)[0])
    slow = 0
    print(f"\n{'page':<44} {'rows':>5} {'queries':>7} │ {'python':>7} {'p50':>7} {'p95':>7} ms")
    for name, path in pages():
        if arguments.only not in name:
            continue
        with CaptureQueriesContext(connection) as capture:
            setup_test_environment()  # it keeps contexts in answers, which costs: not while timing
            answer = client.get(path)
            teardown_test_environment()
        asked = list(capture)  # the next request clears them
        if answer.status_code != 200:
            raise SystemExit(f"{name}: {path} answered {answer.status_code}")
        listed = len(answer.context["cl"].result_list) if answer.context and "cl" in answer.context else 0
        taken = [_milliseconds(client, path) for _ in range(arguments.repeat)]
        times, own = sorted(whole for whole, _ in taken), sorted(cpu for _, cpu in taken)
        middle = len(taken) // 2
        p95 = times[min(int(len(times) * 0.95), len(times) - 1)]
        over = p95 > arguments.goal_ms
        slow += over
        print(
            f"{name:<44} {listed:>5} {len(asked):>7} │ {own[middle]:>7.1f} {times[middle]:>7.1f} {p95:>7.1f}"
            f"{'  over' if over else ''}",
            flush=True,
        )
        if arguments.explain:
            _explain(asked, connection)
    print(f"\n{slow} over {arguments.goal_ms} ms")
    return 1 if slow else 0


def _milliseconds(client: Any, path: str) -> tuple[float, float]:
    """Return wall-clock time and CPU time of this process."""
    began, cpu = time.perf_counter(), time.process_time()
    client.get(path)
    return (time.perf_counter() - began) * 1000, (time.process_time() - cpu) * 1000


def _explain(asked: list[dict[str, str]], connection: Any) -> None:
    """Print PostgreSQL's plan of the slowest query of the page."""
    slowest = max(asked, key=lambda query: float(query["time"]))
    with connection.cursor() as cursor:
        cursor.execute("EXPLAIN (ANALYZE, BUFFERS) " + slowest["sql"])
        print(slowest["time"], slowest["sql"][-600:])
        print("\n".join(f"    {line}" for (line,) in cursor.fetchall()))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--jobs", type=int, default=1_000_000, help="two attempts and four events each")
    parser.add_argument("--server", default=os.environ.get("DISPATCHER_TEST_DATABASE_URL", LOCAL))
    parser.add_argument("--keep", action="store_true", help="leave the database for the next call")
    parser.add_argument("--repeat", type=int, default=30, help="requests per page")
    parser.add_argument("--goal-ms", type=float, default=300.0)
    parser.add_argument("--only", default="", help="part of a page's name")
    parser.add_argument("--explain", action="store_true", help="show how the slowest query of each page runs")
    return parser


if __name__ == "__main__":
    sys.exit(main())
