"""Callbacks that may fail or be slow, called so that they neither fail nor block the caller."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any


def safely(callback: Callable[..., Any]) -> Callable[..., None]:
    """Wrap a callback so that it never raises: a log on a full disk must not fail a run."""

    def call(*arguments: Any, **values: Any) -> None:
        with suppress(Exception):
            callback(*arguments, **values)

    return call


NUDGE_SECONDS = 0.1


def notify_waiters(lock: threading.Condition) -> None:
    """Notify the condition's waiters, unless its lock stays taken: it is held while the driver is asked, a
    cancel of all runs must not wait for that, and the waiters poll as well."""
    if lock.acquire(timeout=NUDGE_SECONDS):
        lock.notify_all()
        lock.release()
