"""Signs of life of GPU workers, in the database.

A lease that nobody renews says only that Redis does not hear its worker. A worker that lives and is cut off
from Redis goes on with its runs and writes their ends: its attempts must not be taken for lost, nor its
leases' ends for deaths. So each worker that holds leases writes into the database, every two seconds, that
it lives and which attempts it can't renew; the `expired_leases` sweep reads it where a lease ran out.
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
from jobs.execution.worker_state import WorkerState
from jobs.models import WorkerSign

SIGN_SECONDS = 2.0
KEPT = timedelta(days=1)
"""So long the row of a worker that vanished stays; one that stops takes its row along."""

_sign_of = statements.Read(
    lambda: WorkerSign.objects.filter(worker=value(WorkerSign, "worker")).values_list("at", "cut_off")
)


@dataclass(frozen=True, slots=True)
class Sign:
    """cut_off: attempts that the worker holds and could not renew lately."""

    is_alive: bool = False
    cut_off: frozenset[str] = frozenset()


def sign_of(worker: str, now: datetime) -> Sign:
    """What the worker said last. A worker that died can't have said anything so lately when its lease runs
    out: it renewed once more before."""
    found = _sign_of.first(worker=worker)
    if found is None:
        return Sign()
    at, cut_off = found
    # one that is ahead of us by as much has a wrong clock, and could seem to live for ever
    if abs((now - at).total_seconds()) >= _alive_seconds():
        return Sign()
    return Sign(True, frozenset(cut_off))


def drop_old_signs(now: datetime) -> int:
    return WorkerSign.objects.filter(at__lt=now - KEPT).delete()[0]


class WorkerSigns:
    """Writes one worker's sign. `write_if_due` may be called at any rate and from any thread; it never
    waits."""

    def __init__(self, worker: WorkerState) -> None:
        self._worker = worker
        self._lock = threading.Lock()
        self._written_at = self._held_at = float("-inf")
        self._cut_off: list[str] = []
        self._writing: Future[Any] | None = None

    def write_if_due(self) -> None:
        """Through the group commit: a database that hangs holds up no watcher."""
        worker, now = self._worker, self._worker.ports.clock.monotonic()
        with self._lock:
            if worker.completion.keeper.held() or worker.uncertain_claims.by_fleet():
                self._held_at = now
            if now - self._held_at > 2 * settings.DISPATCHER.lease_seconds:
                return
            cut_off = self._cut_off_attempts()
            if now - self._written_at < SIGN_SECONDS and set(cut_off) <= set(self._cut_off):
                return
            if self._writing is not None and not self._writing.done():
                return
            self._written_at, self._cut_off = now, cut_off
            self._writing = worker.completion.writer.submit(lambda: self._write(cut_off))

    def end(self) -> None:
        """The worker stops and holds nothing any more."""
        with self._lock:
            self._held_at = float("-inf")
            if self._written_at > float("-inf"):
                self._worker.completion.writer.submit(
                    lambda: WorkerSign.objects.filter(worker=self._worker.name).delete() and None
                )

    def _cut_off_attempts(self) -> list[str]:
        """Return the attempts whose lease was not renewed lately, early enough for the database to have them
        before the leases expire."""
        renew = settings.DISPATCHER.renew_seconds
        held = self._worker.completion.keeper.unsure(renew + _alive_seconds() / 4)
        asked = self._worker.uncertain_claims.by_fleet().values()
        return sorted({*held, *(attempt for attempts in asked for attempt in attempts)})

    def _write(self, cut_off: Sequence[str]) -> None:
        row = WorkerSign(worker=self._worker.name, at=self._worker.ports.clock.now(), cut_off=list(cut_off))
        WorkerSign.objects.bulk_create(
            [row], update_conflicts=True, unique_fields=["worker"], update_fields=["at", "cut_off"]
        )


def _alive_seconds() -> float:
    """A worker that renewed its lease and died is silent for longer than this when it runs out."""
    return float(settings.DISPATCHER.lease_seconds - settings.DISPATCHER.renew_seconds)
