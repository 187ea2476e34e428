"""When an undelivered callback is tried again. Pure.

Source: the retry schedule that the Standard Webhooks specification recommends.
"""

from __future__ import annotations

import random
from datetime import datetime, timedelta

_MINUTE, _HOUR = 60.0, 3600.0
DELAYS_SECONDS = (
    0.0,
    5.0,
    5 * _MINUTE,
    30 * _MINUTE,
    2 * _HOUR,
    5 * _HOUR,
    10 * _HOUR,
    14 * _HOUR,
    20 * _HOUR,
    24 * _HOUR,
)
"""Seconds before each try, the first included: ten tries over about 75 hours."""

JITTER = 0.1
"""± this share of each delay, so that messages that failed together don't come back together."""

RETRY_AFTER_CAP_SECONDS = 24 * _HOUR
"""A receiver may ask for a longer pause, up to this."""


def next_try_at(
    tries: int, *, now: datetime, retry_after_seconds: float | None = None, chance: float | None = None
) -> datetime | None:
    """When to try again after `tries` failed tries; None: the schedule is used up.

    retry_after_seconds: what the receiver asked for; only ever lengthens the pause.
    chance: 0..1, where in the jitter's range; None: random.
    """
    if tries >= len(DELAYS_SECONDS):
        return None
    where = random.random() if chance is None else chance
    delay = DELAYS_SECONDS[tries] * (1 - JITTER + 2 * JITTER * where)
    if retry_after_seconds is not None:
        delay = max(delay, min(retry_after_seconds, RETRY_AFTER_CAP_SECONDS))
    return now + timedelta(seconds=delay)
