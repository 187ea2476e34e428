"""What services need of the world, injected: tests and the simulator stand their own in its place."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from typing import Any

from django.conf import settings
from django.utils.module_loading import import_string

from foundation.foreign_schema import SchemaProcesses
from foundation.probes import Probes
from foundation.ttl_cache import AdaptiveTtlValue, FreePlaces, RowCache, TtlCache
from gpus.health.health import PARALLEL_PROBES
from gpus.leasing.clock import AgreedClocks, ClockWatch
from gpus.leasing.contract import Leases
from gpus.leasing.values import Wakes
from gpus.protocol import Clock, Ticket
from gpus.registry.processes import IndexGate, IndexGates, Layouts
from gpus.registry.queries import RegistryCache
from gpus.runners.base import Transport
from gpus.runners.transport import HttpTransport
from jobs.domain.access import Principal
from jobs.models import Tenant
from jobs.reports.counters import BufferedCounts, Name
from jobs.reports.history import RecentHistory
from jobs.reports.jobs import Waiting

KEEP_KEY_SECONDS = 2.0
"""A revoked key works this much longer at most; a valid one costs a query only this often."""


def after_seconds(seconds: float, work: Callable[[], None]) -> None:
    timer = threading.Timer(seconds, work)
    timer.daemon = True
    timer.start()


@dataclass(slots=True)
class RedisRest:
    """Of a Redis that was slow (`jobs.limits.submit_limits.ask_redis`). until: the monotonic time until which
    it is left alone."""

    until: float = 0.0


@dataclass(slots=True, eq=False)
class LateTickets:
    """Tickets that Redis did not take (`jobs.submission.submit.push_later`), by fleet and pool, then job."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    waiting: dict[tuple[str, str], dict[str, Ticket]] = field(default_factory=dict)
    is_armed: bool = False


@dataclass(slots=True, eq=False)
class Readiness:
    """What `/readyz` of this process has found out. migrated: all migrations are applied, as they stay for
    its code. fleets: as last read; they are asked too while the database is away."""

    migrated: bool = False
    fleets: tuple[str, ...] = ("main",)
    probes: Probes = field(default_factory=Probes)


@dataclass(frozen=True, slots=True, eq=False)
class LimitCaches:
    """What a process has read lately of its tenants' limits (`jobs.limits`).

    limits: by tenant. used_seconds: GPU-seconds, by tenant and day. free_places: in queues, by limit.
    """

    limits: RowCache[int, Any] = field(
        default_factory=lambda: RowCache(1.0, max_entries=20_000, of=(Tenant,))
    )
    used_seconds: TtlCache[tuple[int, datetime], float] = field(
        default_factory=lambda: TtlCache(2.0, max_entries=10_000)
    )
    free_places: FreePlaces = field(default_factory=FreePlaces)

    def clear(self) -> None:
        self.limits.clear()
        self.used_seconds.clear()
        self.free_places.clear()


@dataclass(frozen=True, slots=True, eq=False)
class Ports:
    """One value per process, equal to itself only.

    clock: time. leases: the lease layer of a fleet. send_wakes: best effort, never raises.
    wake_callbacks: tells the callbacks queue that these outbox rows are due; best effort, never raises.
    announce: tells listeners (streams, long polls) that these jobs changed; best effort, never raises.
    after: does a piece of work once, so many seconds later, in the background.
    database: a connection for what a block reads by `foundation.database.statements`.
    clocks: whether the clocks agree that a verdict which can't be taken back would be made by.
    transport: HTTP to GPU servers. parallel_probes: how many of them are asked for their health at once.
    layouts: which key layout each fleet's index has. index_gate: a fleet's index of any layout, from outside.
    redis_rest, late_tickets, recent_history, waiting_of_all, limit_caches, registry, readiness: what the
    process keeps of a slow Redis, of tickets that it did not take, of the history that pages show, of the
    counts of all unfinished jobs, of tenants' limits, of the GPU registry, and of its own readiness.
    push_refusals, request_refusals: counts of pushes and requests that it refused. valid_keys: API keys, by
    hash.
    schema_processes: for checks of payloads that may take long.
    """

    clock: Clock
    leases: Callable[[str], Leases]
    send_wakes: Callable[[Sequence[Wakes]], int]
    wake_callbacks: Callable[[Sequence[str]], None]
    announce: Callable[[Sequence[str]], None]
    after: Callable[[float, Callable[[], None]], None] = after_seconds
    database: Callable[[], AbstractContextManager[None]] = nullcontext
    clocks: ClockWatch = field(default_factory=AgreedClocks)
    transport: Transport = field(default_factory=HttpTransport)
    parallel_probes: int = PARALLEL_PROBES
    layouts: Layouts = field(default_factory=Layouts)
    index_gate: Callable[[str, int], IndexGate] = field(
        default_factory=lambda: IndexGates(lambda: str(settings.REDIS_URL))
    )
    redis_rest: RedisRest = field(default_factory=RedisRest)
    late_tickets: LateTickets = field(default_factory=LateTickets)
    recent_history: RecentHistory = field(default_factory=RecentHistory)
    waiting_of_all: AdaptiveTtlValue[list[Waiting]] = field(default_factory=AdaptiveTtlValue)
    push_refusals: BufferedCounts = field(default_factory=lambda: BufferedCounts(Name.PUSHES_REFUSED))
    request_refusals: BufferedCounts = field(
        default_factory=lambda: BufferedCounts(Name.REQUESTS_REFUSED, write_seconds=10.0)
    )
    readiness: Readiness = field(default_factory=Readiness)
    limit_caches: LimitCaches = field(default_factory=LimitCaches)
    registry: RegistryCache = field(default_factory=RegistryCache)
    valid_keys: TtlCache[bytes, Principal] = field(
        default_factory=lambda: TtlCache(KEEP_KEY_SECONDS, max_entries=10_000)
    )
    schema_processes: SchemaProcesses = field(default_factory=SchemaProcesses)


@lru_cache(maxsize=1)
def production_ports() -> Ports:
    """The real ones, one per process: what `settings.DISPATCHER_PORTS` names makes them."""
    make: Callable[[], Ports] = import_string(settings.DISPATCHER_PORTS)
    return make()
