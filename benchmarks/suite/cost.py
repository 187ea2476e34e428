"""The cost of one job for each part of the system, and so the capacity of each part: from its submit to its
last row, jobs of 20 ms on eight slots, submitted one by one and, in another pass, 100 at a time.

Counters are read at rest before and after; the growth at rest (beat, sweeps, probes) is measured first and
subtracted.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from jobs.domain.states import JobState
from verification.proving.terminal import say

from .contenders import Dispatcher
from .cpu import cpu_seconds
from .environment import CannotMeasure
from .rows import count_jobs, query
from .suite import Suite

SLOTS, JOB_SECONDS, JOBS = 8, 0.02, 1_000
REST_SECONDS = 10.0
_BATCH_JOBS = 100
_WARM_UP_JOBS = 100
_WAIT_SECONDS = 120.0
_SETTLE_SECONDS = 1.0
_POSTGRESQL_SETTLE_SECONDS = 11.0
"""An idle backend publishes its counters after up to ten seconds."""
_SCRIPTS = ("evalsha", "eval", "fcall")

Counters = dict[str, float]


def measure(suite: Suite) -> dict[str, Any]:
    """Run the benchmark."""
    count = suite.options.jobs or JOBS
    found: dict[str, Any] = {"jobs": count}
    with suite.dispatcher(SLOTS) as ours:
        suite.env.gpu.begin(SLOTS, gate=False)
        done = _run(suite, ours, 0, _WARM_UP_JOBS, batch=True)
        rest = _per_second(ours)
        for way, batch in (("single", False), ("batch", True)):
            before, began = read_counters(ours), time.monotonic()
            done = _run(suite, ours, done, count, batch=batch)
            after, took = read_counters(ours), time.monotonic() - began
            found[way] = per_job(before, after, rest, took, count)
            for name, value in found[way].items():
                say(f"{way:<7} {name:<34} {value:>12,.3f}")
    return {**found, "carries": {way: carried(found[way]) for way in ("single", "batch")}}


def read_counters(ours: Dispatcher) -> Counters:
    """Return all counters: ``cpu_ms <process>``, ``redis …``, and with PostgreSQL ``postgresql …``."""
    pids = ours.system.pids()
    pids["all of these"] = pids.pop("up", ours.own_pids()[0])  # the supervisor is the parent of the others
    found: Counters = {f"cpu_ms {name}": cpu_seconds([pid]) * 1000 for name, pid in pids.items()}
    if ours.database_pids():
        found["cpu_ms postgresql"] = cpu_seconds(ours.database_pids()) * 1000
    return {**found, **_redis(ours), **_postgresql(ours)}


def per_job(
    before: Mapping[str, float],
    after: Mapping[str, float],
    rest: Mapping[str, float],
    took: float,
    count: int,
) -> Counters:
    """Return the growth of each counter per job. rest: growth per second at rest."""
    return {
        name: round(max(0.0, after[name] - before[name] - rest.get(name, 0.0) * took) / count, 4)
        for name in after
        if name in before
    }


def carried(costs: Mapping[str, float]) -> dict[str, float]:
    """Return the jobs per second at which each part would use one core."""
    parts = {
        "one Redis (a core)": costs.get("cpu_ms valkey", 0.0),
        "PostgreSQL, per core": costs.get("cpu_ms postgresql", 0.0),
        "a worker process": costs.get("cpu_ms gpu_worker", 0.0),
        "a web process": costs.get("cpu_ms web", 0.0),
    }
    return {name: round(1000 / milliseconds) for name, milliseconds in parts.items() if milliseconds}


def _run(suite: Suite, ours: Dispatcher, first: int, count: int, *, batch: bool) -> int:
    """Submit jobs and wait until the last row has its final state. Return the next number."""
    if batch:
        for at in range(0, count, _BATCH_JOBS):
            size = min(_BATCH_JOBS, count - at)
            ours.fill([(first + at + place, JOB_SECONDS) for place in range(size)])
    else:
        ours.submit_singly([(number, JOB_SECONDS) for number in range(first, first + count)])
    suite.env.gpu.wait_for("ended", first + count, _WAIT_SECONDS, ours.check)
    until = time.monotonic() + _WAIT_SECONDS
    while count_jobs(ours, JobState.COMPLETED) < first + count:
        if time.monotonic() > until:
            raise CannotMeasure("the jobs ran, but their rows are not final")
        time.sleep(0.1)
    time.sleep(_POSTGRESQL_SETTLE_SECONDS if ours.database_url else _SETTLE_SECONDS)
    return first + count


def _per_second(ours: Dispatcher) -> Counters:
    before, began = read_counters(ours), time.monotonic()
    time.sleep(REST_SECONDS)
    took = time.monotonic() - began
    after = read_counters(ours)
    return {name: (after[name] - before[name]) / took for name in after if name in before}


def _redis(ours: Dispatcher) -> Counters:
    import redis

    with redis.Redis.from_url(ours.system.redis_url) as client:
        info: Any = client.info("everything")
    commands = {name: one for name, one in info.items() if name.startswith("cmdstat_")}
    # a script's time includes that of its commands: the times must not be added up
    scripts = [one for name, one in commands.items() if name.removeprefix("cmdstat_") in _SCRIPTS]
    return {
        "redis round trips": float(info["total_reads_processed"]),
        "redis commands, scripts' own too": float(sum(one["calls"] for one in commands.values())),
        "redis scripts": float(sum(one["calls"] for one in scripts)),
        "redis µs in scripts": float(sum(one["usec"] for one in scripts)),
        "redis bytes in": float(info["total_net_input_bytes"]),
        "redis bytes out": float(info["total_net_output_bytes"]),
    }


def _postgresql(ours: Dispatcher) -> Counters:
    if not ours.database_url:
        return {}
    row = query(
        ours,
        "select xact_commit + xact_rollback, tup_inserted, tup_updated, tup_deleted,"
        " pg_database_size(datname), pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')"
        " from pg_stat_database where datname = current_database()",
    )
    names = ("transactions", "rows inserted", "rows updated", "rows deleted", "bytes on disk", "bytes of WAL")
    return {f"postgresql {name}": float(value) for name, value in zip(names, row, strict=True)}
