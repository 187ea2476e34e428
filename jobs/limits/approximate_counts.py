"""How many places are left under a limit that need not be exact: counted every few seconds, and reduced by
what this process lets in meanwhile.

Other web processes let in jobs between two counts too: the limit may be exceeded by what they take then.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

KEEP_SECONDS = 2.0
SHARE_OF_TIME = 0.01
"""The most of a process' time that goes into the counts of one limit."""
MOST_LIMITS = 20_000


@dataclass(slots=True)
class _Count:
    left: int
    until: float


# of the process, like django.core.cache: its callers have no owner of it to pass
_counts: dict[str, _Count] = {}
_lock = threading.Lock()


def take(name: str, asking: int, count: Callable[[], int]) -> int:
    """Return how many places are left for these jobs, and reserve them.

    asking: jobs. count: reads the places that are left. A reservation that is not used counts until the next
    reading.
    """
    known = _counts.get(name)
    if known is None or known.until <= time.monotonic():
        began = time.monotonic()
        left = count()
        ended = time.monotonic()
        known = _Count(left, ended + max(KEEP_SECONDS, (ended - began) / SHARE_OF_TIME))
        with _lock:
            if len(_counts) >= MOST_LIMITS:
                _counts.clear()
            _counts[name] = known
    with _lock:
        left = known.left
        known.left -= min(asking, max(left, 0))
    return left


def forget() -> None:
    with _lock:
        _counts.clear()
