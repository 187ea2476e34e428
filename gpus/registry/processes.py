"""Heartbeats of the dispatcher's processes, and gates of the indexes that they use.

Heartbeats are compared with the database's clock only. A process may learn of a switch of a fleet's layout
(`gpus.registry.layouts.Layouts`) a second late, so the old index is closed in Redis before the new one opens.
`IndexGate` does that for an index of any layout; it touches only keys whose meaning no layout may change:
`generation`, `rebuild`, `ticking` and `expiry` (`lua/close_generation.lua`, `lua/discard_generation.lua`,
`lua/signs_of_life.lua` in gpus/leasing).
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta

from django.conf import settings
from django.db.models import QuerySet
from django.db.models.functions import Now

from gpus.errors import LeasingUnavailable
from gpus.leasing import keys
from gpus.leasing.connect import connect
from gpus.leasing.scripts import FAILURES, Client, Scripts
from gpus.models import Process

MAX_ATTEMPTS = 100_000


@dataclass(frozen=True, slots=True)
class IndexActivity:
    """Recent use of an index.

    closed_by: owner that closed it; empty if it is open or gone. swept_seconds: since a sweep last listed its
    expired leases; None: never. renewed: attempts whose lease or uncommitted end was renewed less than a
    lease time ago.
    """

    closed_by: str
    swept_seconds: float | None
    renewed: tuple[str, ...]


class IndexGate:
    """Closes, discards and inspects one fleet's index of any layout.

    now_ms, monotonic: as for `Scripts`. Every method is idempotent and raises LeasingUnavailable.
    """

    def __init__(
        self,
        client: Client,
        fleet: str,
        layout: int,
        *,
        now_ms: Callable[[], int] | None = None,
        monotonic: Callable[[], float] | None = None,
    ) -> None:
        self._scripts = Scripts(client, keys.prefix(fleet, layout), now_ms=now_ms, monotonic=monotonic)

    def close(self, by: str) -> None:
        """Stop all claims in the index, by processes of any version, until it is discarded.

        Leases are still renewed, released and settled there. After a restart of Redis, close it again.
        """
        self._scripts.run("close_generation", owner=by)

    def discard(self) -> None:
        """Mark the index as neither whole nor closed, so that the processes of its layout rebuild it."""
        self._scripts.run("discard_generation")

    def activity(self) -> IndexActivity:
        """Read who closed the index, and its recent sweeps and renewals."""
        closed_by, looked_us, *renewed = self._scripts.run("signs_of_life", limit=MAX_ATTEMPTS)
        looked = float(looked_us) / 1e6 if looked_us else None
        return IndexActivity(str(closed_by), looked, tuple(map(str, renewed)))


class IndexGates:
    """Creates `IndexGate`s of one Redis on first use; a forked child process creates its own."""

    def __init__(self, url: Callable[[], str]) -> None:
        self._url = url
        self._lock = threading.Lock()
        self._gates: dict[tuple[int, str, int], IndexGate] = {}

    def __call__(self, fleet: str, layout: int) -> IndexGate:
        """Return the gate of a fleet's index. Raises LeasingUnavailable if a cluster does not answer."""
        which = (os.getpid(), fleet, layout)
        with self._lock:
            if which not in self._gates:
                try:
                    self._gates[which] = IndexGate(connect(self._url()), fleet, layout)
                except FAILURES as error:
                    raise LeasingUnavailable(f"Redis does not answer: {error}") from error
            return self._gates[which]


FORGET_AFTER = timedelta(days=1)


def silent_after() -> timedelta:
    """How long after its last heartbeat a process counts as dead."""
    return timedelta(seconds=settings.DISPATCHER.process_silent_seconds)


def live_processes() -> QuerySet[Process]:
    """Processes with a recent heartbeat."""
    return Process.objects.filter(beat_at__gt=Now() - silent_after())


def is_known_in_other_layout(name: str, layout: int) -> bool:
    """Whether there is a row of a process of this name with another layout, live or silent."""
    return Process.objects.filter(name=name).exclude(layout=layout).exists()


def is_live_in_other_layout(name: str, layout: int) -> bool:
    """Whether a live process of this name has another layout."""
    return live_processes().filter(name=name).exclude(layout=layout).exists()


def record_heartbeat(
    name: str, kind: str, layout: int, ready: Mapping[str, str], queues: Iterable[str] = ()
) -> None:
    """Write a process' heartbeat.

    name: of the process. kind: `Process.Kind`. layout: its key layout. ready: by fleet, id of the index
    switch that this process is ready for. queues: that it consumes.
    """
    values = {
        "kind": kind,
        "layout": layout,
        "ready": dict(ready),
        "queues": "\n".join(sorted(queues)),
        "beat_at": Now(),
    }
    if not Process.objects.filter(name=name).update(**values):
        Process.objects.create(name=name, started_at=Now(), **values)
    # after the database's clock was set back, heartbeats in its future would keep dead processes alive
    Process.objects.filter(beat_at__gt=Now()).update(beat_at=Now())


def sign_off(name: str) -> None:
    """Delete the row of a process that stops in order."""
    Process.objects.filter(name=name).delete()


def forget_silent() -> None:
    """Delete processes that were silent for a day."""
    Process.objects.filter(beat_at__lt=Now() - FORGET_AFTER).delete()
