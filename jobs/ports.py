"""The ports of a process: its connections to clocks, Redis, broker, HTTP and database, and its caches. Tests
and the simulator inject their own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from typing import Any

from django.apps import apps
from django.conf import settings
from django.db.models import QuerySet
from django.utils.module_loading import import_string

from artifacts.store.configured import ProcessStore
from artifacts.store.contract import Store
from artifacts.uploads import Completions
from foundation.foreign_schema import SchemaProcesses
from foundation.probes import Probes
from foundation.ttl_cache import AdaptiveTtlValue, RemainingCapacity, RowChanges, TtlCache
from gpus.health.health import PARALLEL_PROBES
from gpus.leasing.clock import AgreedClocks, ClockWatch
from gpus.leasing.contract import Leases
from gpus.leasing.values import Wakes
from gpus.protocol import Clock, Ticket
from gpus.registry.layouts import Layouts
from gpus.registry.processes import IndexGate, IndexGates
from gpus.registry.queries import RegistryCache
from gpus.runners.base import Transport
from gpus.runners.transport import HttpTransport
from jobs.domain.access import Principal
from jobs.models import Job
from jobs.reports.counters import BufferedCounts, Name
from jobs.reports.history import RecentHistory
from jobs.reports.jobs import Waiting

KEEP_KEY_SECONDS = 2.0
"""How long a valid API key is cached: a revoked key works so much longer at most."""


def after_seconds(seconds: float, work: Callable[[], None]) -> None:
    """Call `work` once after so many seconds, in a thread of its own."""
    timer = threading.Timer(seconds, work)
    timer.daemon = True
    timer.start()


@dataclass(slots=True)
class RedisRest:
    """The circuit breaker of a slow Redis (`jobs.limits.submit_limits.ask_redis`). until: monotonic time
    until which submits send it no request."""

    until: float = 0.0


@dataclass(slots=True, eq=False)
class PendingTickets:
    """Tickets that Redis did not accept (`jobs.submission.submit.push_again`), by fleet and pool, then by job
    id.
    is_armed: a retry is scheduled."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    waiting: dict[tuple[str, str], dict[str, Ticket]] = field(default_factory=dict)
    is_armed: bool = False


@dataclass(slots=True, eq=False)
class Readiness:
    """What `/readyz` of this process has checked so far.

    migrated: all migrations were applied once, which stays true for this process's code. fleets: as last
    read; also checked while the database is away.
    """

    migrated: bool = False
    fleets: tuple[str, ...] = ("main",)
    probes: Probes = field(default_factory=Probes)


def tenant_changes() -> RowChanges:
    """Return the changes that this process makes to tenants."""
    config: Any = apps.get_app_config("jobs")
    changes: RowChanges = config.tenant_changes
    return changes


@dataclass(frozen=True, slots=True, eq=False)
class LimitCaches:
    """Caches of tenants' limits (`jobs.limits`).

    limits: by tenant. used_seconds: GPU-seconds, by tenant and day. free_places: in queues, by limit.
    """

    limits: TtlCache[int, Any] = field(
        default_factory=lambda: TtlCache(1.0, max_entries=20_000, changes=tenant_changes())
    )
    used_seconds: TtlCache[tuple[int, datetime], float] = field(
        default_factory=lambda: TtlCache(2.0, max_entries=10_000)
    )
    free_places: RemainingCapacity = field(default_factory=RemainingCapacity)

    def clear(self) -> None:
        self.limits.clear()
        self.used_seconds.clear()
        self.free_places.clear()


@dataclass(frozen=True, slots=True, eq=False)
class Ports:
    """The connections and caches of one process; equal to itself only.

    clock: time, the same for all processes. clock_watch: compares the clocks of hosts, Redis and database.
    leases: returns the lease layer of a fleet.
    send_wakes: sends wakes to GPU workers; returns how many were sent. Never raises.
    wake_callbacks: sends hints that these outbox rows are due; best effort, never raises.
    wake_followers: sends hints that these followers have notices of ends; best effort, never raises.
    retryable: selects those of these dead letters whose success counts: for their follower, if they have one.
    reopened: gets the ids of jobs and runs that had ended and go on, in that transaction.
    nodes_of: returns the key of the node of each of these jobs of workflow runs, by job id.
    announce: announces changed jobs to event streams and long polls; best effort, never raises.
    after: calls a function once, so many seconds later, in the background.
    database: returns a context with a connection for reads by `foundation.database.statements`.
    transport: HTTP to GPU servers. parallel_probes: how many health probes run at once.
    layouts: the key layout of each fleet's index. index_gate: returns a fleet's index of any layout, by its
    number.
    redis_rest: circuit breaker of a slow Redis. pending_tickets: those that Redis did not accept.
    recent_history, waiting_of_all: cached history and counts of unfinished jobs, for pages and metrics.
    push_refusals, request_refusals: counts of refused pushes and requests.
    readiness: of this process. limit_caches: of tenants. registry: cached rows of the GPU registry.
    valid_keys: cached API keys, by hash. schema_processes: run checks of payloads that may take long.
    process_store: makes the store of artifacts; use `artifact_store`. artifact_completions: bounds how many
    uploads in parts are joined at once.
    """

    clock: Clock
    leases: Callable[[str], Leases]
    send_wakes: Callable[[Sequence[Wakes]], int]
    wake_callbacks: Callable[[Sequence[str]], None]
    announce: Callable[[Sequence[str]], None]
    wake_followers: Callable[[Sequence[str]], None] = lambda followers: None
    retryable: Callable[[QuerySet[Job]], QuerySet[Job]] = lambda letters: letters
    reopened: Callable[[Collection[str]], None] = lambda ids: None
    nodes_of: Callable[[Sequence[str]], Mapping[str, str]] = lambda job_ids: {}
    after: Callable[[float, Callable[[], None]], None] = after_seconds
    database: Callable[[], AbstractContextManager[None]] = nullcontext
    clock_watch: ClockWatch = field(default_factory=AgreedClocks)
    transport: Transport = field(default_factory=HttpTransport)
    parallel_probes: int = PARALLEL_PROBES
    layouts: Layouts = field(default_factory=Layouts)
    index_gate: Callable[[str, int], IndexGate] = field(
        default_factory=lambda: IndexGates(lambda: str(settings.REDIS_URL))
    )
    redis_rest: RedisRest = field(default_factory=RedisRest)
    pending_tickets: PendingTickets = field(default_factory=PendingTickets)
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
    process_store: ProcessStore = field(default_factory=ProcessStore)
    artifact_completions: Completions = field(default_factory=Completions)

    @property
    def artifact_store(self) -> Store:
        """The store of artifacts. Raises ImproperlyConfigured."""
        return self.process_store.get(self.clock.now)


@lru_cache(maxsize=1)
def production_ports() -> Ports:
    """Return this process's ports, made once by the function that `settings.DISPATCHER_PORTS` names."""
    make: Callable[[], Ports] = import_string(settings.DISPATCHER_PORTS)
    return make()
