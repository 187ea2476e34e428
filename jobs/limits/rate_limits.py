"""How fast a tenant submits: a token bucket in Redis, one token per job, at least one per body that is read.

Without Redis everybody gets in: the promise that a submit is answered stands above the limit, and what the
database takes bounds it then. The bucket is in `gpus/leasing/lua/take_tokens.lua`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from foundation.texts import counted
from gpus.leasing.values import Tokens
from jobs.domain.errors import BatchExceedsBurst, RateLimited, Refused
from jobs.limits.tenant_limits import Limits, limits_of
from jobs.ports import Ports

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
    return ports.redis_rest.ask(
        "rate_not_checked",
        lambda: ports.leases(HOME_FLEET).take_tokens(
            str(tenant_id), jobs, per_second=per_second, burst=limits.burst
        ),
        ports.clock,
    )


def _limited(limits: Limits, wait_seconds: float) -> RateLimited:
    s = "" if limits.submits_per_second == 1 else "s"
    detail = f"The tenant may submit {limits.submits_per_second:g} job{s} per second, {limits.burst} at once."
    return RateLimited(detail, retry_after_seconds=wait_seconds)
