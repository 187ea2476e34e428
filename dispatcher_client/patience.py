"""When to try again, and when to stop."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import TypeVar

from .errors import DispatcherError, NoAnswer, Unavailable

FIRST_PAUSE_SECONDS = 0.25
LONGEST_PAUSE_SECONDS = 10.0
LONGEST_RETRY_AFTER_SECONDS = 30.0
"""What a server asks for beyond this is not obeyed: it may be wrong."""

T = TypeVar("T")


def pause_seconds(
    tries: int, asked_for: float | None = None, chance: Callable[[], float] = random.random
) -> float:
    """After so many tries. Never less than the server asked for, and up to half as much again, so that
    clients that were turned away together don't come back together."""
    if asked_for is not None and asked_for > 0:
        return min(asked_for, LONGEST_RETRY_AFTER_SECONDS) * (1 + chance() / 2)
    longest: float = min(FIRST_PAUSE_SECONDS * 2 ** min(tries - 1, 16), LONGEST_PAUSE_SECONDS)
    return longest * (1 + chance()) / 2


def pause_after(error: DispatcherError, tries: int) -> float:
    asked_for = error.retry_after_seconds if isinstance(error, Unavailable) else None
    if isinstance(error, Unavailable) and error.status == 429 and error.is_documented and asked_for:
        return asked_for * (1 + random.random() / 10)  # the dispatcher knows when: a quota ends at midnight
    return pause_seconds(tries, asked_for)


def insist(once: Callable[[], T], *, retry_seconds: float) -> T:
    """Calls it until it returns; no try begins later than `retry_seconds`. Raises what the last try raised:
    NoAnswer or Unavailable then, any other error at once."""
    until = time.monotonic() + retry_seconds
    tries = 0
    while True:
        tries += 1
        try:
            return once()
        except (NoAnswer, Unavailable) as error:
            pause = pause_after(error, tries)
            if time.monotonic() + pause > until:
                raise
        time.sleep(pause)
