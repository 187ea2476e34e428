"""Counters of cost and throughput: Redis, database, processor, slots, waits."""

from __future__ import annotations

import os
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpus.leasing.store import RedisLeases

SAMPLE = 25
"""One call in so many of each script is timed by Redis' own counters."""
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


def cpu_seconds_of(pid: int) -> float:
    """Return the CPU time of another process on this machine (Linux)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_SECOND


class MeteredLeases(RedisLeases):
    """Leases with counters of script calls. calls: by script. micros: Redis' own time of the timed ones, as
    (calls, µs)."""

    def __init__(self, client: Any, fleet: str, now_ms: Callable[[], int]) -> None:
        super().__init__(client, fleet, now_ms=now_ms)
        self._client = client
        self.calls: Counter[str] = Counter()
        self.sampled: dict[str, tuple[int, int]] = {}

    def _run(self, script: str, /, **args: Any) -> Any:
        self.calls[script] += 1
        if self.calls[script] % SAMPLE:
            return super()._run(script, **args)
        before = self._scripts_us()
        answer = super()._run(script, **args)
        spent = self._scripts_us() - before
        count, total = self.sampled.get(script, (0, 0))
        self.sampled[script] = count + 1, total + spent
        return answer

    def reset(self) -> None:
        self.calls.clear()
        self.sampled.clear()

    def _scripts_us(self) -> int:
        return int(self._client.info("commandstats").get("cmdstat_fcall", {}).get("usec", 0))


class RedisMeter:
    """Reads Redis' own counters. client: of a server for this benchmark only."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def reset(self) -> None:
        self._client.config_resetstat()

    def read(self) -> dict[str, float]:
        """Return the counts since the reset: script calls, commands inside them and beside them, µs; and
        bytes now."""
        stats = {
            name.removeprefix("cmdstat_"): one for name, one in self._client.info("commandstats").items()
        }
        ours = ("info", "config|resetstat", "config")
        scripts = stats.pop("fcall", {"calls": 0, "usec": 0})
        rest = {name: one for name, one in stats.items() if name not in ours}
        memory = self._client.info("memory")
        return {
            "scripts": scripts["calls"],
            "script_us": scripts["usec"],
            "commands": sum(one["calls"] for one in rest.values()),
            "published": rest.get("publish", {}).get("calls", 0),
            "bytes": memory["used_memory_dataset"],
        }


@dataclass
class DatabaseMeter:
    """Counts statements, commits and time of the database.

    connection: Django's, not its proxy. closes: connections that a thread would have returned (the
    simulator's one connection stays open: its threads are fibers)."""

    connection: Any
    statements: int = 0
    commits: int = 0
    seconds: float = 0.0
    closes: int = 0

    def open(self) -> None:
        """Count until the process ends."""
        commit = self.connection._commit

        def counted() -> None:
            self.commits += 1
            began = time.perf_counter()
            commit()
            self.seconds += time.perf_counter() - began

        def close() -> None:
            self.closes += 1

        self.connection.execute_wrappers.append(self._execute)
        vars(self.connection).update(_commit=counted, close=close)

    def reset(self) -> None:
        self.statements = self.commits = self.closes = 0
        self.seconds = 0.0

    def server_cpu_seconds(self) -> float:
        """Return that of the one PostgreSQL backend; SQLite works in this process."""
        if self.connection.vendor != "postgresql":
            return 0.0
        try:
            return cpu_seconds_of(self.connection.connection.info.backend_pid)
        except OSError:  # the server is on another machine
            return float("nan")

    def connect_seconds(self, tries: int = 20) -> float:
        """Return the shortest time for a new connection: the cost for the next thread after one was
        returned."""
        from django.db import connections

        fresh: Any = connections["default"].copy()
        took = []
        for _ in range(tries):
            began = time.perf_counter()
            fresh.connect()
            took.append(time.perf_counter() - began)
            fresh.close()
        return min(took)

    def written_bytes(self) -> int:
        """Return the bytes written to the write-ahead log so far; SQLite: 0."""
        if self.connection.vendor != "postgresql":
            return 0
        return int(self._one("SELECT pg_current_wal_lsn() - '0/0'::pg_lsn"))

    def sizes(self) -> dict[str, tuple[int, int, int]]:
        """Return rows, bytes of the table and of its indexes, of the job tables; the largest first."""
        names = [name for name in self.connection.introspection.table_names() if name.startswith("jobs_")]
        found = {}
        for name in names:
            rows = int(self._one(f'SELECT count(*) FROM "{name}"'))
            if self.connection.vendor == "postgresql":
                table = int(self._one("SELECT pg_table_size(%s)", f'"{name}"'))
                indexes = int(self._one("SELECT pg_indexes_size(%s)", f'"{name}"'))
            else:
                table = int(self._one(f"SELECT coalesce(sum(pgsize), 0) FROM dbstat WHERE name = '{name}'"))
                indexes = int(
                    self._one(
                        "SELECT coalesce(sum(pgsize), 0) FROM dbstat WHERE name IN"
                        " (SELECT name FROM sqlite_master WHERE type = 'index' AND tbl_name = %s)",
                        name,
                    )
                )
            if rows:
                found[name] = (rows, table, indexes)
        return dict(sorted(found.items(), key=lambda item: -sum(item[1][1:])))

    def _one(self, sql: str, *values: Any) -> Any:
        with self.connection.cursor() as cursor:
            cursor.execute(sql, values or None)
            return cursor.fetchone()[0]

    def _execute(self, execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        self.statements += 1
        began = time.perf_counter()
        try:
            return execute(sql, params, many, context)
        finally:
            self.seconds += time.perf_counter() - began


@dataclass
class Sections:
    """Wall and processor seconds of this process, by section. A section must not wait in virtual time."""

    wall: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    cpu: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    times: Counter[str] = field(default_factory=Counter)

    @contextmanager
    def of(self, name: str, count: int = 1) -> Iterator[None]:
        wall, cpu = time.perf_counter(), time.process_time()
        try:
            yield
        finally:
            self.wall[name] += time.perf_counter() - wall
            self.cpu[name] += time.process_time() - cpu
            self.times[name] += count

    def reset(self) -> None:
        self.wall.clear()
        self.cpu.clear()
        self.times.clear()


@dataclass
class Ledger:
    """The runs on the slots, in virtual seconds; only times after `since` count."""

    since: float
    busy: float = 0.0
    swapping: float = 0.0
    finished: int = 0
    started: int = 0
    swaps: int = 0
    doubled: int = 0
    """Runs that began on a busy slot: a defect."""
    waits: dict[tuple[str, str], list[float]] = field(default_factory=lambda: defaultdict(list))
    """By (kind, name): band or kind of tenant."""
    _warm: dict[str, str] = field(default_factory=dict)
    _taken: set[str] = field(default_factory=set)

    def start(self, slot: str, model: str, now: float, swap_seconds: float) -> float:
        """Return the seconds that the slot needs to load the model."""
        self.doubled += slot in self._taken
        self._taken.add(slot)
        cold = self._warm.get(slot) != model
        self._warm[slot] = model
        swap = swap_seconds if cold else 0.0
        if now >= self.since:
            self.started += 1
            self.swaps += cold
            self.swapping += swap
        return swap

    def waited(self, seconds: float, now: float, band: str, kind: str) -> None:
        if now >= self.since:
            self.waits["band", band].append(seconds)
            self.waits["tenant", kind].append(seconds)

    def end(self, slot: str, began: float, now: float) -> None:
        self._taken.discard(slot)
        if now > self.since:
            self.finished += 1
            self.busy += now - max(began, self.since)

    def still_running(self, began: float, now: float) -> None:
        """Count a slot that is busy at the end."""
        self.busy += now - max(began, self.since)


def percentile(values: list[float], share: float) -> float:
    """Return NaN without values."""
    ordered = sorted(values)
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)] if ordered else float("nan")
