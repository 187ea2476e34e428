"""What limits submits: a tenant's rate, the jobs that wait (how many, of a tenant and for a model, and for
how long), and a tenant's quota of GPU-seconds in a UTC day. `max_running` is enforced in
`gpus/leasing/lua/includes/parked.lua`.

A submit is answered whatever Redis does: a Redis that hangs is left alone for a while.

*The rate* is a token bucket in Redis (`gpus/leasing/lua/take_tokens.lua`), one token per job, at least one
per body that is read. Without Redis everybody gets in, and what the database takes bounds it then.

*Waiting* is all that is accepted and neither runs nor is over: in line, between two attempts, or ahead of its
time. The rows are counted by an index, and never further than the limit: nothing is kept beside them, and the
count is right while Redis is away. It is taken inside the transaction that inserts the jobs.

On PostgreSQL transactions don't see each other's jobs until they commit. So those that come near a limit go
one after the other: they take its lock and count again. A few jobs far from it go in without: what they see
free holds all that may be under way, the largest batch and a hundred times a few. A limit can be exceeded
only by a transaction that stalls between count and commit while more than `_far()` jobs are let in. SQLite
writes one transaction at a time.

A tenant without a limit of its own has `DISPATCHER_TENANT_MAX_QUEUED`. That one protects the database, so a
count that is some seconds old will do: other web processes let in jobs between two counts too.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from hashlib import blake2b
from typing import Any, TypeVar

import structlog
from django.conf import settings
from django.db import connection
from django.db.models import F, Sum

from foundation.database import statements
from foundation.texts import counted
from gpus.errors import LeasingUnavailable
from gpus.leasing.values import Tokens
from jobs.domain.errors import (
    BatchExceedsBurst,
    ModelQueueFull,
    QuotaExhausted,
    RateLimited,
    Refused,
    TenantQueueFull,
)
from jobs.domain.quota import Quota
from jobs.limits.gpu_seconds import day_of, used_seconds
from jobs.models import Job, Rollup, Tenant
from jobs.ports import Ports
from jobs.reports.rollups import MINUTE
from jobs.transitions import WAITING

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Limits:
    """None: no limit of its own; of max_queued, that of the settings. burst: jobs at once, of the rate.
    allowed_models: names."""

    max_queued: int | None = None
    max_queued_seconds: float | None = None
    submits_per_second: float | None = None
    submit_burst: int | None = None
    daily_gpu_seconds: float | None = None
    allowed_models: frozenset[str] | None = None

    @property
    def burst(self) -> int:
        return self.submit_burst or max(1, math.ceil(self.submits_per_second or 1.0))


FIELDS = tuple(field.name for field in fields(Limits))
"""Of the tenant's row."""
_row = statements.Read(lambda: Tenant.objects.filter(pk=statements.value(Tenant, "id")).values(*FIELDS))


def limits_of(tenant_id: int, ports: Ports) -> Limits:
    """Cached for a second; a change by this process is seen at once."""
    found: Limits = ports.limit_caches.limits.get(tenant_id, lambda: _read(tenant_id))
    return found


def _read(tenant_id: int) -> Limits:
    row = _row.first(id=tenant_id)
    if row is None:
        return Limits()
    names = row.pop("allowed_models")
    return Limits(**row, allowed_models=None if names is None else frozenset(names))


# -- how long Redis may hold up a submit --------------------------------------------------------

SLOW_REDIS_SECONDS = 0.5
REDIS_REST_SECONDS = 2.0
Answer = TypeVar("Answer")


def ask_redis(what: str, call: Callable[[], Answer], ports: Ports) -> Answer | None:
    """What Redis answers; None while it is away, or rests because it was slow. One that answered slowly rests
    too: what the same request would ask next could come too late. what: the log event where nothing was
    answered in time."""
    began = ports.clock.monotonic()
    if began < ports.redis_rest.until:
        return None
    answer, error = None, ""
    try:
        answer = call()
    except LeasingUnavailable as away:
        error = str(away)
    now = ports.clock.monotonic()
    if now - began > SLOW_REDIS_SECONDS:
        ports.redis_rest.until = now + REDIS_REST_SECONDS
        error = error or "Redis is slow"
    if error:
        log.warning(what, error=error)
    return answer


# -- the rate ---------------------------------------------------------------------------------

HOME_FLEET = "main"
"""A tenant has one bucket, whatever the fleets of its models."""


@dataclass(frozen=True, slots=True)
class Rate:
    """per_second, burst: the limit. left: jobs that may follow at once. full_seconds: until the whole burst
    is there again."""

    per_second: float
    burst: int
    left: int
    full_seconds: float


@dataclass(frozen=True, slots=True)
class Admission:
    """rate: None where the tenant has none, or nobody could ask. refused: why it may not submit now."""

    rate: Rate | None = None
    refused: Refused | None = None


def rate_refusal(tenant_id: int, ports: Ports) -> RateLimited | None:
    """What a submit of one job would be refused with now; takes no token."""
    limits = limits_of(tenant_id, ports)
    if limits.submits_per_second is None:
        return None
    tokens = _take(tenant_id, 0, limits, ports)
    if tokens is None or tokens.left >= 1:
        return None
    # time to the first token = time to a full bucket - (burst - 1) / rate
    wait = tokens.full_seconds - (limits.burst - 1) / limits.submits_per_second
    return _limited(limits, max(0.0, wait))


def admit(tenant_id: int, jobs: int, ports: Ports, *, taken: int = 0) -> Admission:
    """Takes a token per job, or none. taken: those that the request took already. Not remembered under any
    key: a request that comes again takes its tokens again."""
    limits = limits_of(tenant_id, ports)
    per_second, burst = limits.submits_per_second, limits.burst
    if per_second is None:
        return Admission()
    if jobs > burst:
        rate = Rate(per_second, burst, burst, 0.0)
        return Admission(
            rate, BatchExceedsBurst(f"The tenant may submit {counted(burst, 'job')} at once, not {jobs}.")
        )
    tokens = _take(tenant_id, jobs - taken, limits, ports)
    if tokens is None:
        return Admission()
    rate = Rate(per_second, burst, tokens.left, tokens.full_seconds)
    if tokens.taken:
        return Admission(rate)
    wait = tokens.wait_seconds + taken / per_second  # it takes those again, too
    return Admission(rate, _limited(limits, wait))


def admit_each(tenant_id: int, submits: int, ports: Ports) -> list[Admission]:
    """Of so many submits of one job each that are here at once: what `admit` would tell one after the other,
    asked in one go where there are tokens for all."""
    limits = limits_of(tenant_id, ports)
    per_second, burst = limits.submits_per_second, limits.burst
    if per_second is None:
        return [Admission()] * submits
    if 1 < submits <= burst:
        tokens = _take(tenant_id, submits, limits, ports)
        if tokens is None:
            return [Admission()] * submits
        if tokens.taken:
            rates = [
                Rate(per_second, burst, tokens.left + after, tokens.full_seconds - after / per_second)
                for after in reversed(range(submits))
            ]
            return [Admission(rate) for rate in rates]
    admissions: list[Admission] = []
    while len(admissions) < submits:
        one = admit(tenant_id, 1, ports)
        refused_too = submits - len(admissions) if one.refused is not None else 1
        admissions += [one] * refused_too
    return admissions


def _take(tenant_id: int, jobs: int, limits: Limits, ports: Ports) -> Tokens | None:
    """None: nobody could ask."""
    per_second = limits.submits_per_second or math.inf
    return ask_redis(
        "rate_not_checked",
        lambda: ports.leases(HOME_FLEET).take_tokens(
            str(tenant_id), jobs, per_second=per_second, burst=limits.burst
        ),
        ports,
    )


def _limited(limits: Limits, wait_seconds: float) -> RateLimited:
    s = "" if limits.submits_per_second == 1 else "s"
    detail = f"The tenant may submit {limits.submits_per_second:g} job{s} per second, {limits.burst} at once."
    return RateLimited(detail, retry_after_seconds=wait_seconds)


# -- waiting jobs -------------------------------------------------------------------------------

FEW = 10
"""Jobs of one transaction that need no turn; a batch takes one."""
_STATES = [state.value for state in WAITING]
WINDOW_SECONDS = 600.0
LONGEST_SECONDS = 60.0
"""Also where nothing ended for the whole window: somebody may cancel, or a server come back."""


@dataclass(frozen=True, slots=True)
class _Limit:
    """most: jobs that may wait. asking: jobs of this transaction. rows: which count. is_rough: the count may
    be some seconds old."""

    name: str
    most: int
    asking: int
    rows: Mapping[str, Any]
    is_rough: bool = False

    @property
    def lock(self) -> int:
        return int.from_bytes(blake2b(self.name.encode(), digest_size=8).digest(), "big", signed=True)

    def free_places(self) -> int:
        # only the state is read: so the index alone has all that the count needs
        rows = Job.objects.filter(state__in=_STATES, **self.rows).order_by().values("state")
        return self.most - rows[: self.most].count()


class QueueLimits:
    """The queue limits of one transaction: free places are counted once, at its first job, and then taken by
    its own jobs. asking: tenant and model of each job of the transaction. patience_seconds: the longest wait
    for a limit's lock, after which OperationalError is raised; None: no bound."""

    def __init__(
        self,
        now: datetime,
        asking: Iterable[tuple[int, str]],
        ports: Ports,
        *,
        patience_seconds: float | None = None,
    ) -> None:
        self.ports = ports
        self._now, self._asking, self._patience_seconds = now, list(asking), patience_seconds
        self._limits: dict[str, _Limit] = {}
        self._left: dict[str, int] | None = None
        self._waits: dict[str, float] = {}

    def refusal(self, tenant_id: int, model: str) -> Refused | None:
        """Return why this job may not be queued; None: it may, and it has taken a place."""
        if self._left is None:
            self._limits = {limit.name: limit for limit in self._of_all()}
            rough = [limit for limit in self._limits.values() if limit.is_rough]
            exact = [limit for limit in self._limits.values() if not limit.is_rough]
            self._left = _places(exact, self._patience_seconds)
            free = self.ports.limit_caches.free_places
            self._left |= {
                limit.name: free.take(limit.name, limit.asking, limit.free_places) for limit in rough
            }
        of_tenant, of_model = f"tenant {tenant_id}", f"model {model}"
        if self._left.get(of_tenant, 1) <= 0:
            return TenantQueueFull(
                counted(self._limits[of_tenant].most, "job of the tenant waits", "jobs of the tenant wait")
                + ", and no more may.",
                retry_after_seconds=self._wait(of_tenant, tenant_id=tenant_id),
            )
        if self._left.get(of_model, 1) <= 0:
            return ModelQueueFull(
                f"{counted(self._limits[of_model].most, 'job waits', 'jobs wait')} for {model!r}, "
                "and no more may.",
                retry_after_seconds=self._wait(of_model, model=model),
            )
        for name in (of_tenant, of_model):
            if name in self._left:
                self._left[name] -= 1
        return None

    def _wait(self, name: str, **of: object) -> float:
        """Read once: a thousand refusals of one batch must not be as many reads in its transaction."""
        if name not in self._waits:
            self._waits[name] = seconds_until_one_ends(self._now, **of)
        return self._waits[name]

    def _of_all(self) -> Iterator[_Limit]:
        """The limits of all jobs that may ask."""
        for tenant_id, asking in Counter(tenant_id for tenant_id, _ in self._asking).items():
            own = limits_of(tenant_id, self.ports).max_queued
            most = settings.DISPATCHER.tenant_max_queued if own is None else own
            if own is not None or most:
                # "not over" is what the index of a tenant's jobs is made for; that of a model's has them all
                rows = {"tenant_id": tenant_id, "finished_at": None}
                yield _Limit(f"tenant {tenant_id}", most, asking, rows, is_rough=own is None)
        for model, asking in Counter(model for _, model in self._asking).items():
            spec = self.ports.registry.model_spec(model)
            if spec is not None and spec.max_queued is not None:
                yield _Limit(f"model {model}", spec.max_queued, asking, {"model": model})


def _places(limits: Iterable[_Limit], patience_seconds: float | None) -> dict[str, int]:
    """What is free, by name of the limit."""
    takes_turns = connection.vendor == "postgresql" and connection.in_atomic_block  # else nothing is inserted
    found: dict[str, int] = {}
    near: list[_Limit] = []
    for limit in limits:
        if takes_turns and limit.asking > FEW:
            near.append(limit)
            continue
        found[limit.name] = limit.free_places()
        if takes_turns and found[limit.name] < _far():
            near.append(limit)
    if near:
        _take_turn(near, patience_seconds)
        found |= {limit.name: limit.free_places() for limit in near}
    return found


def _far() -> int:
    return settings.DISPATCHER.max_batch_jobs + 100 * FEW


def _take_turn(limits: Iterable[_Limit], patience_seconds: float | None) -> None:
    """Until the transaction ends. All at once and in one order: two batches never wait for each other."""
    locks = sorted(limit.lock for limit in limits)
    with connection.cursor() as cursor:
        if patience_seconds is not None:
            cursor.execute(
                "SELECT set_config('lock_timeout', %s, true)", [f"{patience_seconds * 1000:.0f}ms"]
            )
        cursor.execute("SELECT pg_advisory_xact_lock(one) FROM unnest(%s::bigint[]) AS one", [locks])


def max_queued_seconds(tenant_id: int, model: str, ports: Ports) -> float | None:
    """Return the longest time that a job may wait: the tenant's or the model's limit, whichever is shorter,
    else the setting's. None: no limit."""
    spec = ports.registry.model_spec(model)
    own = (limits_of(tenant_id, ports).max_queued_seconds, spec.max_queued_seconds if spec else None)
    chosen = [seconds for seconds in own if seconds is not None]
    return min(chosen) if chosen else settings.DISPATCHER.max_queued_seconds or None


def queue_deadline_of(job: Job, start: datetime, ports: Ports) -> datetime | None:
    """Return when the job has waited too long; None: never. start: when it begins to wait."""
    seconds = max_queued_seconds(job.tenant_id, job.model, ports)
    return None if seconds is None else start + timedelta(seconds=seconds)


def seconds_until_one_ends(now: datetime, **of: object) -> float:
    """The mean time between two ends in the last ten minutes, from 1 to 60 s. of: fields of the rollups, as
    in model="flux" or tenant_id=3."""
    since = now - timedelta(seconds=WINDOW_SECONDS)
    rows = Rollup.objects.filter(span_seconds=MINUTE, at__gte=since, **of)
    ended = rows.aggregate(ended=Sum(F("completed") + F("failed") + F("cancelled")))["ended"] or 0
    return min(LONGEST_SECONDS, max(1.0, WINDOW_SECONDS / ended)) if ended else LONGEST_SECONDS


# -- GPU-seconds of the day ---------------------------------------------------------------------


def quota_of(tenant_id: int, now: datetime, ports: Ports) -> Quota | None:
    """None: it has none; what was used is remembered for two seconds."""
    limit = limits_of(tenant_id, ports).daily_gpu_seconds
    if limit is None:
        return None
    left = (day_of(now) + timedelta(days=1) - now).total_seconds()
    used = ports.limit_caches.used_seconds.get(
        (tenant_id, day_of(now)), lambda: used_seconds([tenant_id], now)[tenant_id]
    )
    return Quota(used=used, limit=limit, left_seconds=left)


def quota_refusal(tenant_id: int, now: datetime, ports: Ports) -> QuotaExhausted | None:
    """None while there is something left of the day."""
    quota = quota_of(tenant_id, now, ports)
    if quota is None or not quota.is_exhausted:
        return None
    return QuotaExhausted(
        f"The tenant has used {quota.used:.0f} of its {quota.limit:g} GPU-seconds of this UTC day.",
        retry_after_seconds=quota.left_seconds,
    )
