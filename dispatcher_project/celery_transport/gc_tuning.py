"""What a process loads at its start is there until its end: garbage collection need not look at it again.

A full collection walks through every object, some 120,000 of Django, Celery and ours, and nothing else runs
in the process meanwhile: 60 to 100 ms of processor time, several times that where the processor is shared. In
the web process that is the slowest hundredth of the submits.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def loaded_for_good() -> Iterator[None]:
    """Around what a process loads at its start. Nothing is collected before its end: it would be walked
    through several times while it grows."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
    keep_what_is_loaded()


def keep_what_is_loaded() -> None:
    """From here on only what comes later is walked through."""
    gc.collect()  # what is garbage by now would be kept too
    gc.freeze()


def collect_seldom() -> None:
    """For a process that makes garbage faster than cycles: a simulated history, a test."""
    keep_what_is_loaded()
    gc.set_threshold(50_000, 20, 100)
