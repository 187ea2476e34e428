"""The caches of rows that a test makes: after it they read no signals any more.

Many are parts of cycles, which stay until the garbage collector comes, and that is seldom in tests: up to 300
receivers were called at each save of a row.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from weakref import ReferenceType

from django.db.models.signals import post_delete, post_save
from django.dispatch import Signal

from foundation.ttl_cache import RowCache
from gpus.registry.queries import rows_changed

_SIGNALS = (post_save, post_delete, rows_changed)


@contextmanager
def disconnected_at_the_end() -> Iterator[None]:
    """Caches that were there before stay connected: a fixture of a wider scope has made them."""
    before = [{id(receiver) for _, receiver, _ in signal.receivers} for signal in _SIGNALS]
    yield
    for signal, kept in zip(_SIGNALS, before, strict=True):
        _keep(signal, kept)


def _keep(signal: Signal, kept: set[int]) -> None:
    with signal.lock:
        left = [one for one in signal.receivers if id(one[1]) in kept or not _is_of_a_cache(one[1])]
        if len(left) < len(signal.receivers):
            signal.receivers = left
            signal.sender_receivers_cache.clear()


def _is_of_a_cache(receiver: Any) -> bool:
    """receiver: a function, or a weak reference to one."""
    alive = receiver() if isinstance(receiver, ReferenceType) else receiver
    return alive is None or isinstance(getattr(alive, "__self__", None), RowCache)
