"""Telling others, who may fail at it or be slow to hear: that must not end or hold up who tells."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any


def quietly(tell: Callable[..., Any]) -> Callable[..., None]:
    """A log on a full disk or a closed pipe loses lines; no run may be lost with them."""

    def told(*arguments: Any, **values: Any) -> None:
        with suppress(Exception):
            tell(*arguments, **values)

    return told


NUDGE_SECONDS = 0.1


def nudge(lock: threading.Condition) -> None:
    """Wakes who waits on it. Whoever tells all runs of their cancels must not wait for a lock that is held
    while the driver is asked; and who waits looks by itself, too."""
    if lock.acquire(timeout=NUDGE_SECONDS):
        lock.notify_all()
        lock.release()
