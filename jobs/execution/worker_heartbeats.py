"""Heartbeats of GPU workers in the database (rows of `WorkerSign`).

A lease that is not renewed proves only that Redis gets no request of its worker. A worker that is cut off
from Redis continues its runs and writes their ends: its attempts must not be ended as lost, nor its expired
leases counted as deaths. So each worker that holds leases writes every two seconds, into the database, that
it lives and which attempts it can't renew; the `expired_leases` sweep reads that when a lease expires.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings

from foundation.database import statements
from foundation.database.statements import value
from gpus.protocol import Clock
from jobs.execution.claiming import UncertainClaims
from jobs.execution.completion import Completion
from jobs.models import WorkerSign

HEARTBEAT_SECONDS = 2.0
KEPT = timedelta(days=1)
"""How long the row of a dead worker stays; a worker that stops deletes its row."""

_last = statements.Read(
    lambda: WorkerSign.objects.filter(worker=value(WorkerSign, "worker")).values_list("at", "cut_off")
)


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """The last heartbeat of a worker. cut_off: ids of attempts that it holds and could not renew lately."""

    is_alive: bool = False
    cut_off: frozenset[str] = frozenset()


def last_heartbeat(worker: str, now: datetime) -> Heartbeat:
    """Return the worker's last heartbeat; `is_alive` is False if that is too old.

    When a lease of a dead worker expires, its last heartbeat is too old: it died at most `renew_seconds`
    after the lease's last renewal.
    """
    found = _last.first(worker=worker)
    if found is None:
        return Heartbeat()
    at, cut_off = found
    # a time as far ahead comes from a wrong clock: it would make a dead worker live for ever
    if abs((now - at).total_seconds()) >= _alive_seconds():
        return Heartbeat()
    return Heartbeat(True, frozenset(cut_off))


def drop_old_heartbeats(now: datetime) -> int:
    """Delete rows of dead workers; return their number."""
    return WorkerSign.objects.filter(at__lt=now - KEPT).delete()[0]


class WorkerHeartbeats:
    """Writes the heartbeats of one worker. Thread-safe.

    completion: has the worker's name and leases, and the writer of the rows. uncertain: the worker's claims
    whose answer was lost.
    """

    def __init__(self, clock: Clock, completion: Completion, uncertain: UncertainClaims) -> None:
        self._clock, self._completion, self._uncertain = clock, completion, uncertain
        self._lock = threading.Lock()
        self._written_at = self._held_at = float("-inf")
        self._cut_off: list[str] = []
        self._writing: Future[Any] | None = None

    def write_if_due(self) -> None:
        """Queue a heartbeat if one is due. Never waits: a database that hangs must not stop the caller."""
        now = self._clock.monotonic()
        with self._lock:
            if self._completion.keeper.held() or self._uncertain.by_fleet():
                self._held_at = now
            if now - self._held_at > 2 * settings.DISPATCHER.lease_seconds:
                return
            cut_off = self._cut_off_attempts()
            if now - self._written_at < HEARTBEAT_SECONDS and set(cut_off) <= set(self._cut_off):
                return
            if self._writing is not None and not self._writing.done():
                return
            self._written_at, self._cut_off = now, cut_off
            self._writing = self._completion.writer.submit(lambda: self._write(cut_off))

    def end(self) -> None:
        """Delete the worker's row: it stops, and holds no lease any more."""
        with self._lock:
            self._held_at = float("-inf")
            if self._written_at > float("-inf"):
                self._completion.writer.submit(
                    lambda: WorkerSign.objects.filter(worker=self._completion.name).delete() and None
                )

    def _cut_off_attempts(self) -> list[str]:
        """Return ids of attempts whose lease was not renewed lately, early enough to write them before the
        leases expire."""
        renew = settings.DISPATCHER.renew_seconds
        held = self._completion.keeper.unconfirmed(renew + _alive_seconds() / 4)
        asked = self._uncertain.by_fleet().values()
        return sorted({*held, *(attempt for attempts in asked for attempt in attempts)})

    def _write(self, cut_off: Sequence[str]) -> None:
        row = WorkerSign(worker=self._completion.name, at=self._clock.now(), cut_off=list(cut_off))
        WorkerSign.objects.bulk_create(
            [row], update_conflicts=True, unique_fields=["worker"], update_fields=["at", "cut_off"]
        )


def _alive_seconds() -> float:
    """Return for how long a heartbeat counts; see `last_heartbeat`."""
    return float(settings.DISPATCHER.lease_seconds - settings.DISPATCHER.renew_seconds)
