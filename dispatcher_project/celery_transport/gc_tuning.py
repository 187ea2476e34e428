"""Excludes objects that live as long as the process from garbage collection.

A full collection blocks the process and visits some 120,000 objects of Django, Celery and ours:
60 to 100 ms of CPU time, several times that on a shared CPU. In the web process it made the slowest 1 % of
submits.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def loaded_for_good() -> Iterator[None]:
    """Disable collection while a process loads its modules, then freeze them (`keep_what_is_loaded`).
    Otherwise the growing heap is collected several times."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
    keep_what_is_loaded()


def keep_what_is_loaded() -> None:
    """Freeze all current objects, so that collections visit only later ones."""
    gc.collect()  # otherwise current garbage would be kept too
    gc.freeze()


def collect_seldom() -> None:
    """Freeze and collect rarely, for processes with much garbage and few cycles, such as simulations and
    tests."""
    keep_what_is_loaded()
    gc.set_threshold(50_000, 20, 100)
