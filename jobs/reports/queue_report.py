"""The queue report for operators: waiting and running jobs per model, estimated durations, and shares of
tenants.

Waiting jobs are read from counters in Redis, ended ones from the rollups; counts in the database are bounded
by the number of slots or by a limit. So a page costs the same at a million jobs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from django.db.models import Count, OuterRef, Subquery
from django.db.models.functions import Coalesce

from gpus.errors import LeasingUnavailable
from gpus.leasing.values import PoolDepth
from gpus.models import ModelConfig, Pause, Pool
from gpus.protocol import CircuitState
from gpus.registry import queries
from gpus.registry.index_sync import LeasesOf
from jobs.domain.states import JobState
from jobs.models import Attempt, Job
from jobs.reports.history import History, ModelHistory, Share, shares

MAX_COUNTED = 5000
"""Upper bound of the counts of jobs that are neither queued nor running."""
_HEAD_OF_QUEUE = 200
"""First queued jobs of a pool; their tenants are shown even without a share."""
_NOT_WORKING = frozenset({"off", "quarantined"})


@dataclass(frozen=True, slots=True)
class ModelQueue:
    """The queue of one model.

    waiting: tickets in the queue; None while Redis does not answer. parked: tickets of tenants that are
    paused, at max_running or without quota. scheduled: jobs with a later `run_at`. cancelling: cancelled jobs
    whose GPU is not proven free. oldest_seconds: since the first queued job was submitted or its `run_at`.
    drain_seconds: estimated time until the pool's queue is empty without further submits; None without
    working slots, and if no healthy server runs the model. pause, circuit: of the model. past: ended jobs in
    the window. shares: of the tenants in the pool.
    """

    model: str
    pool: str
    waiting: int | None
    parked: int
    running: int
    retrying: int
    scheduled: int
    cancelling: int
    oldest_seconds: float | None
    drain_seconds: float | None
    pause: Pause | None
    past: ModelHistory
    shares: tuple[Share, ...]
    circuit: CircuitState = CircuitState.CLOSED

    @property
    def all_waiting(self) -> int:
        return (self.waiting or 0) + self.parked


@dataclass(frozen=True, slots=True)
class QueueSnapshot:
    """The queues of all models. slots: count by state, over all pools. away: pools whose Redis does not
    answer. more: job states whose count reached `MAX_COUNTED`."""

    lines: tuple[ModelQueue, ...]
    system_pause: Pause | None
    tenant_pauses: tuple[Pause, ...]
    slots: Mapping[str, int]
    away: tuple[str, ...]
    more: frozenset[str]

    @property
    def waiting(self) -> int:
        return sum(line.all_waiting for line in self.lines)

    @property
    def working(self) -> int:
        """Number of slots that take jobs."""
        return working(self.slots)

    @property
    def shares(self) -> dict[str, tuple[Share, ...]]:
        """Shares by pool; pools without jobs are left out."""
        return {line.pool: line.shares for line in self.lines if line.shares}

    @property
    def running(self) -> int:
        return sum(line.running for line in self.lines)

    @property
    def oldest_seconds(self) -> float | None:
        return max(
            (line.oldest_seconds for line in self.lines if line.oldest_seconds is not None), default=None
        )


def queue_snapshot(
    leases: LeasesOf,
    now: datetime,
    past: History,
    *,
    with_shares: bool = True,
    most_counted: int = MAX_COUNTED,
) -> QueueSnapshot:
    """Return the queues of all models, sorted by name. past: ended jobs. with_shares: compute the shares,
    which costs one query per pool with waiting jobs. most_counted: jobs of a state outside the queue."""
    depths, away = depths_by_pool(leases)
    pauses = {(one.kind, one.name): one for one in queries.pauses()}
    configs = dict(ModelConfig.objects.order_by("name").values_list("name", "pool_id"))
    running = dict(
        Attempt.objects.filter(state__in=Attempt.LIVE).order_by().values_list("model").annotate(Count("pk"))
    )
    outside = (JobState.RETRYING, JobState.SCHEDULED, JobState.CANCELLING)
    others = {state: _count(state, most_counted) for state in outside}
    full = {pool for pool, depth in depths.items() if depth.waiting or depth.parked}
    oldest = _oldest(full | set(away))
    drains = {pool: _drain_seconds(leases, depths[pool]) for pool in full}
    got = _shares_by_pool(configs, past, full) if with_shares else {}
    lines = []
    for model, pool in configs.items():
        depth = depths.get(pool)
        waits_since = oldest.get(model)
        is_estimated = bool(depth and depth.waiting.get(model)) and queries.has_capacity(model)
        lines.append(
            ModelQueue(
                model=model,
                pool=pool,
                waiting=depth.waiting.get(model, 0) if depth else None,
                parked=depth.parked.get(model, 0) if depth else 0,
                running=running.get(model, 0),
                retrying=others[JobState.RETRYING][model],
                scheduled=others[JobState.SCHEDULED][model],
                cancelling=others[JobState.CANCELLING][model],
                oldest_seconds=max(0.0, (now - waits_since).total_seconds()) if waits_since else None,
                drain_seconds=drains.get(pool) if is_estimated else None,
                pause=pauses.get((Pause.Kind.MODEL, model)),
                past=past.line(model),
                shares=got.get(pool, ()),
                circuit=depth.circuits.get(model, CircuitState.CLOSED) if depth else CircuitState.CLOSED,
            )
        )
    slots: Counter[str] = Counter()
    for depth in depths.values():
        slots.update(depth.slots)
    return QueueSnapshot(
        tuple(lines),
        pauses.get((Pause.Kind.SYSTEM, "")),
        tuple(one for (kind, _), one in pauses.items() if kind == Pause.Kind.TENANT),
        slots,
        tuple(away),
        frozenset(state.value for state, found in others.items() if found.total() >= most_counted),
    )


def _count(state: JobState, most: int) -> Counter[str]:
    """Count the jobs in a state by model, at most `most`; unordered, so that only the index is
    read."""
    rows = Job.objects.filter(state=state.value).order_by()
    return Counter(rows.values_list("model", flat=True)[:most])


def working(slots: Mapping[str, int]) -> int:
    """Return the number of slots that take jobs. slots: count by state."""
    return sum(count for state, count in slots.items() if state not in _NOT_WORKING)


def depths_by_pool(leases: LeasesOf) -> tuple[dict[str, PoolDepth], list[str]]:
    """Return the depths by pool, and the pools whose Redis is unavailable (tried once per fleet)."""
    found: dict[str, PoolDepth] = {}
    silent: set[str] = set()
    away: list[str] = []
    for pool, fleet in Pool.objects.order_by("name").values_list("name", "fleet"):
        try:
            if fleet not in silent:
                found[pool] = leases(fleet).depth(pool)
                continue
        except LeasingUnavailable:
            silent.add(fleet)
        away.append(pool)
    return found, away


def _oldest(pools: set[str]) -> dict[str, datetime]:
    """Return the time of submit (or `run_at`) of each model's first queued job, by model; one index lookup
    each."""
    first = Job.objects.filter(
        state=JobState.QUEUED.value, pool=OuterRef("pool_id"), model=OuterRef("name")
    ).order_by("place_us")
    models = ModelConfig.objects.filter(pool__in=pools).order_by()
    rows = models.annotate(
        oldest=Subquery(first.annotate(since=Coalesce("run_at", "created_at")).values("since")[:1])
    ).values_list("name", "oldest")
    return {name: at for name, at in rows if at is not None}


def _drain_seconds(leases: LeasesOf, depth: PoolDepth) -> float | None:
    slots = working(depth.slots)
    if not slots or not depth.waiting:
        return None
    store = leases(queries.fleet_of(depth.pool))
    try:
        seconds = sum(count * store.estimate_seconds(model, "") for model, count in depth.waiting.items())
    except LeasingUnavailable:
        return None
    return seconds / slots


def _shares_by_pool(
    configs: Mapping[str, str], past: History, full: set[str]
) -> dict[str, tuple[Share, ...]]:
    found = {}
    for pool in sorted(set(configs.values())):
        seconds = past.gpu_seconds_by_tenant(model for model, its_pool in configs.items() if its_pool == pool)
        if pool in full:
            head = Job.objects.filter(state=JobState.QUEUED.value, pool=pool).order_by("place_us")
            for tenant in set(head.values_list("tenant_id", flat=True)[:_HEAD_OF_QUEUE]):
                seconds.setdefault(tenant, 0.0)
        found[pool] = tuple(shares(seconds)) if seconds else ()
    return found
