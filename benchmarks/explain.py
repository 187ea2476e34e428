"""Latency of "why does my job wait?" while a million jobs wait.

    python -m benchmarks.explain                       a million tickets, 1,000 tenants, 10,000 slots
    python -m benchmarks.explain --database postgresql://…/empty      rows in an empty database of your own

The queue is in a real Valkey. The database (SQLite in a temporary folder by default) has the fleet and
`--rows` jobs; the answers come from the service that the API calls, which is timed as a whole.

Goals (exit status 1 if one is missed): an explanation and an estimate take less than 50 ms at the 95th
percentile, and 95 % of the explanations name the real cause first: that other jobs go first (of the first
job: that all slots are busy; of those with a slot: that they start).
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

POOL, MODELS, SLOTS_PER_SERVER = "bench", 4, 8
MAX_MS, RIGHT = 50.0, 0.95


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--waiting", type=int, default=1_000_000)
    parser.add_argument("--tenants", type=int, default=1_000)
    parser.add_argument("--slots", type=int, default=10_000)
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--asks", type=int, default=2_000)
    parser.add_argument("--database", default="")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["DJANGO_SETTINGS_MODULE"] = "dispatcher_project.settings.test"
        os.environ["DISPATCHER_TEST_DATABASE_URL"] = arguments.database or f"sqlite:///{folder}/rows.sqlite3"
        import django

        django.setup()
        from dispatcher_project.supervisor.embedded import EmbeddedValkey

        with EmbeddedValkey(Path(folder), append_only=False) as server:
            p95, right = measure(server.url, arguments)
    print(f"missed: {', '.join(misses(p95, right)) or 'nothing'}")
    sys.exit(bool(misses(p95, right)))


def misses(p95: Mapping[str, float], right: float) -> list[str]:
    """Return the missed goals. p95: milliseconds, by request; right: share of correct first reasons, of 1."""
    slow = [what for what in ("explain", "estimate") if p95[what] >= MAX_MS]
    return slow + ["first reason"] * (right < RIGHT)


def measure(url: str, wanted: Any) -> tuple[dict[str, float], float]:
    """Return the arguments of `misses`."""
    from django.core.management import call_command

    call_command("migrate", verbosity=0)
    from gpus.leasing.connect import connect
    from gpus.leasing.store import RedisLeases

    leases = RedisLeases(connect(url), "bench")
    began = time.perf_counter()
    jobs = fill(leases, wanted)
    print(f"{wanted.waiting:,} tickets pushed in {time.perf_counter() - began:.0f} s", flush=True)
    from gpus.protocol import SystemClock
    from jobs.operations.explain_job import estimate_job, explain_job
    from jobs.ports import Ports

    ports = Ports(
        clock=SystemClock(),
        leases=lambda fleet: leases,
        send_wakes=lambda wakes: 0,
        wake_callbacks=lambda ids: None,
        announce=lambda ids: None,
    )
    chance = random.Random(2)
    tenants = sorted({job.tenant_id for job in jobs})
    explanations: list[Any] = []
    found: dict[str, float] = {}
    for what, ask in (
        ("explain", lambda: explanations.append(explain_job(chance.choice(jobs), ports))),
        (
            "estimate",
            lambda: estimate_job(f"model-{chance.randrange(MODELS)}", chance.choice(tenants), 5, ports),
        ),
        ("outlook commands_us", lambda: leases.queue_status(POOL, chance.choice(jobs).ticket)),
    ):
        spent = []
        for _ in range(wanted.asks):
            began = time.perf_counter()
            ask()
            spent.append((time.perf_counter() - began) * 1000)
        spent.sort()
        p50, found[what], p99 = (spent[int(len(spent) * share)] for share in (0.5, 0.95, 0.99))
        print(f"{what:<14} p50 {p50:6.2f} ms   p95 {found[what]:6.2f} ms   p99 {p99:6.2f} ms", flush=True)
    right = sum(one.reasons[0].code in expected(one.position) for one in explanations)
    print(f"first reason  {right / len(explanations):.1%} right, as in {explanations[0]}")
    return found, right / len(explanations)


def expected(position: int | None) -> tuple[str, ...]:
    """Return the correct first reasons for a job of this fleet, whose slots are all busy."""
    if position is None:
        return ("starting",)
    return ("behind", "lower_share") if position > 1 else ("all_busy",)


def fill(leases: Any, wanted: Any) -> list[Any]:
    """Insert the fleet and the rows, push all tickets, lease all slots."""
    from django.utils import timezone

    from foundation.ids import new_id
    from gpus.models import ModelConfig, Placement, Pool, Server
    from gpus.protocol import PoolSpec, Ticket
    from jobs.models import Job, Tenant

    pool = Pool.objects.create(name=POOL, fleet="bench")
    models = [ModelConfig.objects.create(name=f"model-{number}", pool=pool) for number in range(MODELS)]
    servers = Server.objects.bulk_create(
        Server(name=f"server-{number}", pool=pool, slots=SLOTS_PER_SERVER)
        for number in range(-(-wanted.slots // SLOTS_PER_SERVER))
    )
    Placement.objects.bulk_create(
        Placement(server=server, model=model, endpoint="http://127.0.0.1:9/")
        for server in servers
        for model in models
    )
    tenants = Tenant.objects.bulk_create(Tenant(name=f"tenant-{number}") for number in range(wanted.tenants))
    leases.begin_rebuild("bench")
    leases.wipe("bench")
    leases.configure_pool(PoolSpec(POOL))
    for server in Server.objects.prefetch_related("placements"):
        leases.configure_server(server.spec())
    leases.open_generation("bench")
    chance, now = random.Random(1), timezone.now()
    place = int(now.timestamp() * 1e6)

    def ticket(number: int, job: str) -> Ticket:
        tenant = str(tenants[chance.randrange(wanted.tenants)].pk)
        model = f"model-{chance.randrange(MODELS)}"
        return Ticket(job, model, tenant, chance.choice((2, 5, 5, 8)), place + number)

    rows: list[Job] = []
    waiting: list[Ticket] = []
    for first in range(0, wanted.waiting + wanted.slots, 500):
        batch = [ticket(number, new_id()) for number in range(first, first + 500)]
        leases.push(POOL, batch)
        waiting += batch[:10] if len(waiting) < wanted.rows else []
    for number in range(wanted.slots):
        leases.claim(POOL, worker="w", attempt_id=f"a{number}")
    for one in waiting:
        rows.append(
            Job(
                id=one.job_id, tenant_id=int(one.tenant), model=one.model, pool=POOL, fleet="bench",
                payload={}, priority=one.priority, place_us=one.place_us, created_at=now,
            )
        )  # fmt: skip
    Job.objects.bulk_create(rows, batch_size=500)
    return rows


if __name__ == "__main__":
    main()
