"""Limits on submits: a tenant's rate, the number of waiting jobs (per tenant and per model) and their longest
wait, and a tenant's daily quota of GPU-seconds. `max_running` is enforced in
`gpus/leasing/lua/includes/running.lua`.

*Rate*: a token bucket in Redis (`gpus/leasing/lua/take_tokens.lua`), one token per job and at least one per
request body that is read. Without Redis every submit is admitted. A slow Redis is bypassed for a while
(circuit breaker).

*Waiting jobs*: accepted jobs that neither run nor have ended (queued, between attempts, or scheduled). They
are counted through an index inside the inserting transaction, at most up to the limit, so the count is right
also while Redis is unavailable.

On PostgreSQL, concurrent transactions don't see each other's jobs. So transactions near a limit take the
limit's advisory lock and count again. A transaction of at most `FEW` jobs skips the lock while at least
`_lock_margin()` places are free: enough for the largest batch and a hundred such transactions. A limit can be
exceeded only if a transaction stalls between count and commit while more jobs than the margin are inserted.
SQLite has one writer.

`DISPATCHER_TENANT_MAX_QUEUED`, the default for tenants without a limit of their own, protects only the
database. Its count may be some seconds old and is not exact across web processes.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from typing import Any, TypeVar

import structlog
from django.conf import settings
from django.db import connection
from django.db.models import F, Sum

from foundation.database import statements
from foundation.database.row_limits import lock_limits
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
from jobs.limits.gpu_seconds import used_seconds
from jobs.models import Job, Rollup, Tenant
from jobs.ports import Ports
from jobs.reports.rollups import MINUTE, day_of
from jobs.transitions import WAITING

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Limits:
    """A tenant's submit limits; None: no limit, except max_queued: the default of the settings.

    max_queued: waiting jobs. max_queued_seconds: longest wait. submits_per_second: rate of jobs.
    submit_burst: jobs at once. daily_gpu_seconds: per UTC day. allowed_models: names.
    """

    max_queued: int | None = None
    max_queued_seconds: float | None = None
    submits_per_second: float | None = None
    submit_burst: int | None = None
    daily_gpu_seconds: float | None = None
    allowed_models: frozenset[str] | None = None

    @property
    def burst(self) -> int:
        """Size of the token bucket, in jobs."""
        return self.submit_burst or max(1, math.ceil(self.submits_per_second or 1.0))


FIELDS = tuple(field.name for field in fields(Limits))
"""Columns of the tenant's row."""
_row = statements.Read(lambda: Tenant.objects.filter(pk=statements.value(Tenant, "id")).values(*FIELDS))


def limits_of(tenant_id: int, ports: Ports) -> Limits:
    """Return the tenant's limits, cached for 1 s; a change by this process applies at once."""
    found: Limits = ports.limit_caches.limits.get(tenant_id, lambda: _read(tenant_id))
    return found


def _read(tenant_id: int) -> Limits:
    row = _row.first(id=tenant_id)
    if row is None:
        return Limits()
    names = row.pop("allowed_models")
    return Limits(**row, allowed_models=None if names is None else frozenset(names))


# -- circuit breaker for Redis ------------------------------------------------------------------

SLOW_REDIS_SECONDS = 0.5
"""A slower call opens the circuit."""
REDIS_REST_SECONDS = 2.0
"""Time for which the circuit stays open."""
Answer = TypeVar("Answer")


def ask_redis(event: str, call: Callable[[], Answer], ports: Ports) -> Answer | None:
    """Return the result of a call to Redis; None if Redis is unavailable or the circuit is open.

    A slow answer opens the circuit, too, because further calls of the same request could exceed its deadline.
    event: name of the log event for an error or a slow answer.
    """
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
        log.warning(event, error=error)
    return answer


# -- the rate ---------------------------------------------------------------------------------

RATE_FLEET = "main"
"""Fleet whose Redis holds the token buckets: a tenant has one bucket for all fleets."""


@dataclass(frozen=True, slots=True)
class Rate:
    """A tenant's rate limit and its state. per_second, burst: the limit, in jobs. left: tokens left.
    full_seconds: time until the bucket is full."""

    per_second: float
    burst: int
    left: int
    full_seconds: float


@dataclass(frozen=True, slots=True)
class Admission:
    """Result of the rate check. rate: None without a limit or without Redis. refused: the error, or None if
    admitted."""

    rate: Rate | None = None
    refused: Refused | None = None


def rate_refusal(tenant_id: int, ports: Ports) -> RateLimited | None:
    """Return the error that a submit of one job would get now, or None; takes no token."""
    limits = limits_of(tenant_id, ports)
    if limits.submits_per_second is None:
        return None
    tokens = _take_tokens(tenant_id, 0, limits, ports)
    if tokens is None or tokens.left >= 1:
        return None
    # time to the first token = time to a full bucket - (burst - 1) / rate
    wait = tokens.full_seconds - (limits.burst - 1) / limits.submits_per_second
    return _rate_limited(limits, max(0.0, wait))


def admit(tenant_id: int, jobs: int, ports: Ports, *, taken: int = 0) -> Admission:
    """Take one token per job, or none if there are too few.

    jobs: number of jobs. taken: tokens that this request took before. Idempotency keys are not considered: a
    repeated request takes tokens again.
    """
    limits = limits_of(tenant_id, ports)
    per_second, burst = limits.submits_per_second, limits.burst
    if per_second is None:
        return Admission()
    if jobs > burst:
        rate = Rate(per_second, burst, burst, 0.0)
        return Admission(
            rate,
            BatchExceedsBurst(
                f"The tenant may submit {counted(burst, 'job')} at once, not {jobs}. Split the batch."
            ),
        )
    tokens = _take_tokens(tenant_id, jobs - taken, limits, ports)
    if tokens is None:
        return Admission()
    rate = Rate(per_second, burst, tokens.left, tokens.full_seconds)
    if tokens.taken:
        return Admission(rate)
    wait = tokens.wait_seconds + taken / per_second  # a repeated request needs those tokens again
    return Admission(rate, _rate_limited(limits, wait))


def admit_each(tenant_id: int, submits: int, ports: Ports) -> list[Admission]:
    """Return the admissions of concurrent submits of one job each, as `admit` would decide them in turn; one
    call to Redis if there are tokens for all."""
    limits = limits_of(tenant_id, ports)
    per_second, burst = limits.submits_per_second, limits.burst
    if per_second is None:
        return [Admission()] * submits
    if 1 < submits <= burst:
        tokens = _take_tokens(tenant_id, submits, limits, ports)
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


def _take_tokens(tenant_id: int, jobs: int, limits: Limits, ports: Ports) -> Tokens | None:
    """Call `gpus/leasing/lua/take_tokens.lua`; None if Redis is unavailable."""
    per_second = limits.submits_per_second or math.inf
    return ask_redis(
        "rate_not_checked",
        lambda: ports.leases(RATE_FLEET).take_tokens(
            str(tenant_id), jobs, per_second=per_second, burst=limits.burst
        ),
        ports,
    )


def _rate_limited(limits: Limits, wait_seconds: float) -> RateLimited:
    s = "" if limits.submits_per_second == 1 else "s"
    detail = f"The tenant may submit {limits.submits_per_second:g} job{s} per second, {limits.burst} at once."
    return RateLimited(detail, retry_after_seconds=wait_seconds)


# -- waiting jobs -------------------------------------------------------------------------------

FEW = 10
"""Jobs per transaction up to which the lock can be skipped."""
_STATES = [state.value for state in WAITING]
WINDOW_SECONDS = 600.0
LONGEST_SECONDS = 60.0
"""Upper bound of Retry-After, also if no job ended in the window: a job may be cancelled, or a server
return."""


@dataclass(frozen=True, slots=True)
class _Limit:
    """A limit on waiting jobs. most: the limit. requested: jobs of this transaction. rows: filter of the jobs
    that count. is_rough: the count may be some seconds old."""

    name: str
    most: int
    requested: int
    rows: Mapping[str, Any]
    is_rough: bool = False

    def free_places(self) -> int:
        # reads only the state, so that the count needs no more than the index
        rows = Job.objects.filter(state__in=_STATES, **self.rows).order_by().values("state")
        return self.most - rows[: self.most].count()


class QueueLimits:
    """The limits on waiting jobs in one transaction. Free places are counted at its first job and then used
    up by its own jobs.

    requested: (tenant id, model) of each job of the transaction. patience_seconds: longest wait for a limit's
    lock, after which OperationalError is raised; None: no bound.
    """

    def __init__(
        self,
        now: datetime,
        requested: Iterable[tuple[int, str]],
        ports: Ports,
        *,
        patience_seconds: float | None = None,
    ) -> None:
        self.ports = ports
        self._now, self._requested, self._patience_seconds = now, list(requested), patience_seconds
        self._limits: dict[str, _Limit] = {}
        self._left: dict[str, int] | None = None
        self._waits: dict[str, float] = {}

    def refusal(self, tenant_id: int, model: str, *, others: int = 0) -> Refused | None:
        """Take a place for one job; return the error if there is none, else None. others: places of the
        tenant that are taken beside those of its waiting jobs."""
        if self._left is None:
            self._limits = {limit.name: limit for limit in self._of_all()}
            rough = [limit for limit in self._limits.values() if limit.is_rough]
            exact = [limit for limit in self._limits.values() if not limit.is_rough]
            self._left = _free_places(exact, self._patience_seconds)
            free = self.ports.limit_caches.free_places
            self._left |= {
                limit.name: free.take(limit.name, limit.requested, limit.free_places) for limit in rough
            }
        of_tenant, of_model = f"tenant {tenant_id}", f"model {model}"
        if of_tenant in self._left and self._left[of_tenant] <= others:
            return TenantQueueFull(
                counted(self._limits[of_tenant].most, "job of the tenant waits", "jobs of the tenant wait")
                + ", which is the limit. Retry later.",
                retry_after_seconds=self._wait(of_tenant, tenant_id=tenant_id),
            )
        if self._left.get(of_model, 1) <= 0:
            return ModelQueueFull(
                f"{counted(self._limits[of_model].most, 'job waits', 'jobs wait')} for {model!r}, "
                "which is the limit. Retry later.",
                retry_after_seconds=self._wait(of_model, model=model),
            )
        for name in (of_tenant, of_model):
            if name in self._left:
                self._left[name] -= 1
        return None

    def _wait(self, name: str, **of: object) -> float:
        """Return the seconds for Retry-After; cached, because a batch can have a thousand refusals."""
        if name not in self._waits:
            self._waits[name] = seconds_until_one_ends(self._now, **of)
        return self._waits[name]

    def _of_all(self) -> Iterator[_Limit]:
        """Yield the limits that apply to the requested jobs."""
        for tenant_id, requested in Counter(tenant_id for tenant_id, _ in self._requested).items():
            own = limits_of(tenant_id, self.ports).max_queued
            most = settings.DISPATCHER.tenant_max_queued if own is None else own
            if own is not None or most:
                # the index of a tenant's jobs is partial (finished_at IS NULL), that of a model's is not
                rows = {"tenant_id": tenant_id, "finished_at": None}
                yield _Limit(f"tenant {tenant_id}", most, requested, rows, is_rough=own is None)
        for model, requested in Counter(model for _, model in self._requested).items():
            spec = self.ports.registry.model_spec(model)
            if spec is not None and spec.max_queued is not None:
                yield _Limit(f"model {model}", spec.max_queued, requested, {"model": model})


def _free_places(limits: Iterable[_Limit], patience_seconds: float | None) -> dict[str, int]:
    """Return the free places, by name of the limit; on PostgreSQL under the limits' locks where necessary."""
    # outside a transaction no job is inserted (an estimate), so no lock is needed
    uses_locks = connection.vendor == "postgresql" and connection.in_atomic_block
    found: dict[str, int] = {}
    near: list[_Limit] = []
    for limit in limits:
        if uses_locks and limit.requested > FEW:
            near.append(limit)
            continue
        found[limit.name] = limit.free_places()
        if uses_locks and found[limit.name] < _lock_margin():
            near.append(limit)
    if near:
        _lock(near, patience_seconds)
        found |= {limit.name: limit.free_places() for limit in near}
    return found


def _lock_margin() -> int:
    """Return the number of free places below which a transaction takes the limit's lock."""
    return settings.DISPATCHER.max_batch_jobs + 100 * FEW


def _lock(limits: Iterable[_Limit], patience_seconds: float | None) -> None:
    """Lock the limits until the transaction ends."""
    if patience_seconds is not None:
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT set_config('lock_timeout', %s, true)", [f"{patience_seconds * 1000:.0f}ms"]
            )
    lock_limits(limit.name for limit in limits)


def max_queued_seconds(tenant_id: int, model: str, ports: Ports) -> float | None:
    """Return the longest time that a job may wait: the tenant's or the model's limit, whichever is shorter,
    else the setting's. None: no limit."""
    spec = ports.registry.model_spec(model)
    own = (limits_of(tenant_id, ports).max_queued_seconds, spec.max_queued_seconds if spec else None)
    chosen = [seconds for seconds in own if seconds is not None]
    return min(chosen) if chosen else settings.DISPATCHER.max_queued_seconds or None


def queue_deadline(tenant_id: int, model: str, start: datetime, ports: Ports) -> datetime | None:
    """Return when a tenant's job of a model has waited too long; None: never. start: of its wait."""
    seconds = max_queued_seconds(tenant_id, model, ports)
    return None if seconds is None else start + timedelta(seconds=seconds)


def seconds_until_one_ends(now: datetime, **of: object) -> float:
    """Return the mean time between two ends of jobs in the last ten minutes, 1 to 60 s, as Retry-After.

    of: filter of the rollups, such as model="flux" or tenant_id=3.
    """
    since = now - timedelta(seconds=WINDOW_SECONDS)
    rows = Rollup.objects.filter(span_seconds=MINUTE, at__gte=since, **of)
    ended = rows.aggregate(ended=Sum(F("completed") + F("failed") + F("cancelled")))["ended"] or 0
    return min(LONGEST_SECONDS, max(1.0, WINDOW_SECONDS / ended)) if ended else LONGEST_SECONDS


# -- daily GPU-seconds --------------------------------------------------------------------------


def quota_of(tenant_id: int, now: datetime, ports: Ports) -> Quota | None:
    """Return the tenant's daily quota and its use, which is cached for 2 s; None without a quota."""
    limit = limits_of(tenant_id, ports).daily_gpu_seconds
    if limit is None:
        return None
    left = (day_of(now) + timedelta(days=1) - now).total_seconds()
    used = ports.limit_caches.used_seconds.get(
        (tenant_id, day_of(now)), lambda: used_seconds([tenant_id], now)[tenant_id]
    )
    return Quota(used=used, limit=limit, left_seconds=left)


def quota_refusal(tenant_id: int, now: datetime, ports: Ports) -> QuotaExhausted | None:
    """Return the error for a submit of a tenant that has exhausted its daily quota, else None."""
    quota = quota_of(tenant_id, now, ports)
    if quota is None or not quota.is_exhausted:
        return None
    return QuotaExhausted(
        f"The tenant has used {quota.used:.0f} of its {quota.limit:g} GPU-seconds of this UTC day."
        " Retry after midnight UTC.",
        retry_after_seconds=quota.left_seconds,
    )
