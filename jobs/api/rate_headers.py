"""What a tenant's rate limit looks like on the wire: draft-ietf-httpapi-ratelimit-headers-11 (May 2026)."""

from __future__ import annotations

import math

from jobs.limits.rate_limits import Rate

NAME = '"submits"'


def rate_headers(rate: Rate | None) -> dict[str, str]:
    """q: jobs of a burst, and w: the seconds in which the bucket fills up; r: jobs left, and t: the seconds
    until all are there again. None where the tenant has no limit."""
    if rate is None:
        return {}
    window = max(1, math.ceil(rate.burst / rate.per_second))
    return {
        "RateLimit-Policy": f"{NAME};q={rate.burst};w={window}",
        "RateLimit": f"{NAME};r={rate.left};t={math.ceil(rate.full_seconds)}",
    }
