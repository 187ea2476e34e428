"""Should the job tables be partitioned by time? The cost of removing old jobs row by row and by the
partition, the cost of each way for current jobs, and the constraints that would be lost.

    python -m benchmarks.partitions                  a million jobs, ten partitions; some ten minutes
    python -m benchmarks.partitions --jobs 100000

PostgreSQL only (--server, else DISPATCHER_TEST_DATABASE_URL). A job's id begins with its time, so jobs can be
cut by id, and attempts and events by their job's. The partitioned tables are in a schema of their own, where
the same code finds them by `search_path`. Jobs, attempts and events are compared; a "part" is a tenth of the
jobs, as a month of ten that are kept.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.databases import LOCAL, own_database
from benchmarks.partitions_tables import DAYS, FIRST, KEYS, SCHEMA, drop_first_part, make_partitions

HOT_JOBS = 400


@dataclass(slots=True)
class Cost:
    """Per job or call: ms by the clock, ms of the database server's processor, bytes of log."""

    ms: float
    cpu_ms: float
    wal: float

    def __str__(self) -> str:
        return f"{self.ms:8.3f} ms · {self.cpu_ms:8.3f} ms of the server · {self.wal:9,.0f} bytes of log"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--jobs", type=int, default=1_000_000, help="two attempts and four events each")
    parser.add_argument("--parts", type=int, default=10)
    parser.add_argument("--server", default=os.environ.get("DISPATCHER_TEST_DATABASE_URL", LOCAL))
    parser.add_argument("--json", type=Path, metavar="FILE")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # SIGTERM must drop its database too
    if arguments.parts < 2 or arguments.jobs < 10_000:
        parser.error("at least 2 parts and 10,000 jobs")
    with own_database(arguments.server, f"dispatcher_partitions_{os.getpid()}") as url:
        os.environ.update(
            DISPATCHER_TEST_DATABASE_URL=url,
            DISPATCHER_LOG_LEVEL="CRITICAL",
            DJANGO_SETTINGS_MODULE="dispatcher_project.settings.test",
        )
        import django
        from django.core.management import call_command

        django.setup()
        call_command("migrate", verbosity=0, interactive=False)
        from benchmarks.admin_lists_data import fill

        fill(arguments.jobs)
        found = _measure(arguments.jobs, arguments.parts)
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=1, default=asdict))


def _measure(jobs: int, parts: int) -> dict[str, Any]:
    from django.db import connections

    from benchmarks.big_fleet_meters import DatabaseMeter

    meter = DatabaseMeter(connections["default"])
    cursor: Any = meter.connection.cursor()
    lost = make_partitions(cursor, parts)
    print(f"{jobs:,} jobs in {parts} parts. What a partitioned table can't promise any more:")
    for one in lost:
        print(f"  {one}")
    found: dict[str, Any] = {"jobs": jobs, "parts": parts, "lost": lost, "sizes": meter.sizes()}
    names = "".join(f"{path:>34}" for path in ("one table", "partitioned"))
    print(f"\n{'ms by the clock / of the server':<36}{names}")
    for name, work, count in _hot_path():
        row: dict[str, Cost] = {}
        for path in ("public", f"{SCHEMA}, public"):
            cursor.execute(f"SET search_path = {path}")
            work(count // 10)  # caches, plans
            row[path] = _timed(meter, lambda work=work, count=count: work(count), count)  # type: ignore[misc]
        print(f"{name:<36}" + "".join(f"{one.ms:>22.3f} / {one.cpu_ms:.3f} ms" for one in row.values()))
        found[name] = list(row.values())
    cursor.execute("SET search_path = public")
    print()
    found["rows"] = _purge_rows(meter, parts)
    found["vacuum"] = _vacuum(meter, cursor, found["rows"]["removed"])
    found["drop"] = _drop_part(meter, cursor)
    return found


def _timed(meter: Any, work: Callable[[], object], count: int) -> Cost:
    with _spent(meter) as spent:
        work()
    return Cost(spent[0] * 1000 / count, spent[1] * 1000 / count, spent[2] / count)


@contextmanager
def _spent(meter: Any) -> Iterator[list[float]]:
    """Yield [seconds, the server's processor seconds, bytes of log], filled in at the end."""
    spent: list[float] = []
    cpu, wal, began = meter.server_cpu_seconds(), meter.written_bytes(), time.perf_counter()
    yield spent
    took = time.perf_counter() - began
    spent += [took, meter.server_cpu_seconds() - cpu, meter.written_bytes() - wal]


# -- current jobs -------------------------------------------------------------------------------------


def _hot_path() -> list[tuple[str, Callable[[int], None], int]]:
    """Return (name, function of a count, count): one job's life in three transactions, and reads."""
    from django.db import transaction
    from django.utils import timezone

    from foundation.database import statements
    from foundation.ids import new_id
    from jobs import transitions
    from jobs.domain.retry import Ending, RetryPolicy
    from jobs.domain.states import JobState
    from jobs.index_rebuild.tickets import waiting_tickets
    from jobs.models import Attempt, Job, Tenant
    from jobs.sweeps import deadlines, due_retries

    tenant = Tenant.objects.order_by("pk").values_list("pk", flat=True)[0]
    policy = RetryPolicy()

    def lives(count: int) -> None:
        for number in range(count):
            now = timezone.now()
            job = Job(
                id=new_id(), tenant_id=tenant, model="model-1", pool="model-1", payload={"prompt": "x" * 300},
                place_us=int(now.timestamp() * 1e6), created_at=now,
            )  # fmt: skip
            attempt, slot = new_id(), f"hot/{number}"
            with transaction.atomic():
                statements.write(transitions.new_jobs([job], now))
            with transaction.atomic():
                transitions.start_attempt(transitions.Start(job.id, attempt, slot, "model-1", "w", now))
            with transaction.atomic():
                transitions.end_attempt(
                    transitions.End(
                        job.id, attempt, 1, slot, Ending(), policy, now, result={"url": "x" * 100}
                    )
                )

    def looks(look: Callable[[], object]) -> Callable[[int], None]:
        def work(count: int) -> None:
            for _ in range(count):
                look()

        return work

    now = FIRST + timedelta(days=DAYS)
    of_tenant = Job.objects.filter(tenant_id=tenant).order_by("-id").defer("payload", "result")
    on_slot = Attempt.objects.filter(server="server-1-1", slot=3).order_by("-started_at")
    last = Job.objects.order_by("-id").values_list("id", flat=True)[0]
    failed = Job.objects.filter(state=JobState.FAILED.value, dismissed_at=None).order_by("-finished_at")
    return [
        ("submit, start and end of a job", lives, HOT_JOBS),
        ("a job by its id", looks(lambda: Job.objects.filter(id=last).values("state").first()), HOT_JOBS),
        ("a tenant's newest 50", looks(lambda: list(of_tenant[:50])), HOT_JOBS),
        ("a page of the line", looks(lambda: waiting_tickets("model-1")), HOT_JOBS),
        ("newest dead letters", looks(lambda: list(failed.values_list("id")[:50])), HOT_JOBS),
        ("last attempt of a slot", looks(lambda: on_slot.values("id").first()), HOT_JOBS),
        ("due retries", looks(lambda: due_retries._due(now=FIRST)), HOT_JOBS),
        ("passed deadlines", looks(lambda: deadlines._past_deadline(now=now)), HOT_JOBS),
    ]


# -- old jobs -----------------------------------------------------------------------------------------


def _purge_rows(meter: Any, parts: int) -> dict[str, Any]:
    """Run the real sweep, at a time when the first part has exceeded its retention."""
    from django.conf import settings

    from jobs.models import SweepRun
    from jobs.ports import Ports
    from jobs.reports.rollups import CURSOR
    from jobs.sweeps import retention

    SweepRun.objects.update_or_create(name=CURSOR, defaults={"at": FIRST, "note": str(10**12)})

    class Clock:
        def now(self) -> datetime:
            return FIRST + timedelta(days=settings.DISPATCHER.retention_days + DAYS / parts)

        def monotonic(self) -> float:
            return time.monotonic()

    def no_leases(fleet: str) -> Any:
        raise AssertionError("retention asks no Redis")

    ports = Ports(
        clock=Clock(),
        leases=no_leases,
        send_wakes=len,
        wake_callbacks=lambda _: None,
        announce=lambda _: None,
    )
    own, removed = time.process_time(), 0
    with _spent(meter) as spent:
        while (count := retention.sweep(ports)).repaired:
            removed += count.repaired
    took, cpu, wal = spent
    own = (time.process_time() - own) * 1000 / removed
    cost = Cost(took * 1000 / removed, cpu * 1000 / removed, wal / removed)
    print(f"{removed:,} old jobs removed row by row, {removed / took:,.0f} a second; per job:\n  {cost}")
    print(f"  {own:8.3f} ms of the sweep's own process")
    return {"removed": removed, "per_second": removed / took, "cost": cost, "own_ms": own}


def _vacuum(meter: Any, cursor: Any, removed: int) -> Cost:
    """Run VACUUM, as autovacuum would afterwards; the cost is per removed job."""

    def vacuum() -> None:
        for table in KEYS:
            cursor.execute(f"VACUUM public.{table}")

    cost = _timed(meter, vacuum, removed)
    print(f"vacuum after it, per removed job:\n  {cost}")
    return cost


def _drop_part(meter: Any, cursor: Any) -> dict[str, Any]:
    """Drop a part, under an exclusive lock of the three tables."""
    with _spent(meter) as spent:
        counts = drop_first_part(cursor)
    took, cpu, wal = spent
    removed = counts["removed"]
    cost = Cost(took * 1000 / removed, cpu * 1000 / removed, wal / removed)
    print(
        f"{removed:,} old jobs dropped with their part in {took:.2f} s, {counts['moved']:,} rows of dead"
        f" letters moved; per job:\n  {cost}"
    )
    return {**counts, "seconds": took, "cost": cost}


if __name__ == "__main__":
    main()
