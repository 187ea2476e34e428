"""The steps of a big fleet: set up, fill the queue, run, read the meters."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from django.conf import settings
from django.db import connections

from benchmarks.big_fleet_load import Load
from benchmarks.big_fleet_meters import (
    DatabaseMeter,
    Ledger,
    RedisMeter,
    Sections,
    cpu_seconds_of,
    percentile,
)
from benchmarks.big_fleet_scripts import script_costs
from benchmarks.big_fleet_system import System
from dispatcher_project.supervisor.embedded import EmbeddedValkey
from jobs.domain.states import JobState
from jobs.models import Job


def run_services(
    load: Load, client: Any, valkey: EmbeddedValkey, report: Callable[[str], None], *, rebuild: bool
) -> dict[str, Any]:
    """Run everything. Raises RuntimeError if anything failed."""
    size, pid = load.size, valkey.pid or 0
    settings.REDIS_URL = valkey.url
    database = DatabaseMeter(connections["default"])
    database.connection.ensure_connection()
    database.open()
    redis, sections, ledger = RedisMeter(client), Sections(), Ledger(since=float("inf"))
    system = System(load, client, database, sections, ledger)
    report(f"registers {size.slots} slots for {size.models} models in {size.pools} pools")
    began = time.perf_counter()
    system.register()
    system.start()
    registered = time.perf_counter() - began
    empty, wal = redis.read()["bytes"], database.written_bytes()
    report(f"submits {size.waiting} jobs")
    database.reset()
    server_cpu = database.server_cpu_seconds()
    system.fill_line()
    found: dict[str, Any] = {
        "database": database.connection.vendor,
        "register_seconds": registered,
        "submit": {
            "jobs": size.waiting,
            "cpu_ms": sections.cpu["submit, batches"] * 1000 / max(1, size.waiting),
            "wall_ms": sections.wall["submit, batches"] * 1000 / max(1, size.waiting),
            "database_cpu_ms": (database.server_cpu_seconds() - server_cpu) * 1000 / max(1, size.waiting),
            "statements": database.statements / max(1, size.waiting),
            "wal_bytes": (database.written_bytes() - wal) / max(1, size.waiting),
        },
        "redis_bytes_per_waiting": (redis.read()["bytes"] - empty) / max(1, size.waiting),
        "waiting_sizes": database.sizes(),
    }
    start = system.scheduler.now
    ledger.since = start + size.warm_up_seconds
    report(f"warms up for {size.warm_up_seconds:g} virtual seconds")
    system.open()
    system.run(ledger.since)
    report(f"runs for {size.seconds - size.warm_up_seconds:g} virtual seconds")
    for meter in (database, redis, sections):
        meter.reset()
    for leases in system.fleets.values():
        leases.reset()
    system.wakes = 0
    own, redis_cpu, server_cpu = time.process_time(), cpu_seconds_of(pid), database.server_cpu_seconds()
    wal, began = database.written_bytes(), time.perf_counter()
    system.run(start + size.seconds)
    took = time.perf_counter() - began
    system.gpus.close()
    found |= _steady(system, took, time.process_time() - own)
    jobs = ledger.finished
    seen = redis.read()
    found["redis"] = {
        "script_calls_per_job": seen["scripts"] / jobs,
        "commands_per_job": seen["commands"] / jobs,
        "us_per_job": seen["script_us"] / jobs,
        "cpu_us_per_job": (cpu_seconds_of(pid) - redis_cpu) * 1e6 / jobs,
        "bytes": seen["bytes"],
        "script_costs": script_costs(list(system.fleets.values()), jobs),
    }
    found["per_job"] = {
        "transactions": database.commits / jobs,
        "statements": database.statements / jobs,
        "database_wall_ms": database.seconds * 1000 / jobs,
        "database_cpu_ms": (database.server_cpu_seconds() - server_cpu) * 1000 / jobs,
        "wal_bytes": (database.written_bytes() - wal) / jobs,
        "connect_ms": database.connect_seconds() * 1000,
        "connections_given_back": database.closes / jobs,
        "wakes": system.wakes / jobs,
    }
    found["sizes"] = database.sizes()
    found["rows"] = {
        "jobs": Job.objects.count(),
        "completed": Job.objects.filter(state=JobState.COMPLETED.value).count(),
    }
    if rebuild:
        report("flushes Redis, and waits for the index")
        found["rebuild_seconds"] = _rebuild(system, client)
    return found


def _steady(system: System, took: float, cpu: float) -> dict[str, Any]:
    """Return the throughput of the window, and where this process' time went."""
    size, ledger, sections = system.size, system.ledger, system.sections
    window = size.seconds - size.warm_up_seconds
    jobs = ledger.finished
    submitted = sections.times["submit, one job"] + sections.times["submit, batches"]
    return {
        "jobs": jobs,
        "submitted": submitted,
        "wall_seconds": took,
        "jobs_per_second": jobs / took,
        "virtual_jobs_per_hour": jobs * 3600 / window,
        "slots_busy": ledger.busy / (size.slots * window),
        "slots_swapping": ledger.swapping / (size.slots * window),
        "swaps_per_start": ledger.swaps / max(1, ledger.started),
        "doubled": ledger.doubled,
        "waits": {
            f"{what} {name}": {
                "starts": len(values),
                "p50": percentile(values, 0.5),
                "p99": percentile(values, 0.99),
            }
            for (what, name), values in sorted(ledger.waits.items())
        },
        "cpu_ms_per_job": cpu * 1000 / jobs,
        "sections": {
            name: {
                "times": sections.times[name],
                "cpu_ms_each": sections.cpu[name] * 1000 / sections.times[name],
                "cpu_ms_per_job": sections.cpu[name] * 1000 / jobs,
                "wall_share_of_virtual": sections.wall[name] / window,
            }
            for name in sorted(sections.cpu, key=lambda name: -sections.cpu[name])
        },
    }


def _rebuild(system: System, client: Any) -> float:
    """Return the real seconds of the sweep that rebuilds the index, without its wait for keepers to announce
    themselves."""
    system.sections.reset()
    client.flushdb()
    system.run(system.scheduler.now + 15.0)
    if system.ports.leases("main").generation() is None and system.size.fleets == 1:
        raise RuntimeError("the index did not come back")
    return system.sections.wall["sweep generation"]
