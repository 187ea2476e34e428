"""Row prefetch: reads the rows of a pool's next jobs while its slots still run others.

A database read between two short jobs costs a tenth of the second job's run. So the index returns the next
jobs (a read), and their rows are read in one statement. A row is a hint, at most `FRESH_SECONDS` old: the
transaction that writes the start decides whether the job is still queued, and the watcher finds other changes
(a cancel), as for any running job.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import structlog
from django.db import DatabaseError, connection
from django.db.models import Exists, OuterRef, QuerySet

from artifacts.models import ArtifactUse
from foundation.database import statements
from gpus.errors import LeasingUnavailable
from jobs.domain.states import JobState
from jobs.models import Job
from jobs.ports import Ports

log = structlog.get_logger()

OF_JOB = (
    "max_retries",
    "max_run_seconds",
    "deadline_at",
    "cancel_requested_at",
    "attempts_made",
    "followed_by",
)
"""Fields of a job's row that its run needs, besides payload and state."""


def rows_to_run(jobs: QuerySet[Job]) -> QuerySet[Job, dict[str, Any]]:
    """Return the rows of jobs with all that a claim reads of them. uses_artifacts: the payload refers to
    some."""
    uses = ArtifactUse.objects.filter(job=OuterRef("id"))
    rows: QuerySet[Job, dict[str, Any]] = jobs.annotate(uses_artifacts=Exists(uses)).values(
        "id", "state", "payload", *OF_JOB, "uses_artifacts"
    )
    return rows


SHORT_SECONDS = 1.0
"""After longer jobs no rows are prefetched: their read is negligible."""
FRESH_SECONDS = 1.0
AHEAD = 2
"""Rows for each busy slot; with fewer than one per slot, more are read."""
MAX_ROWS = 32
"""Rows in memory per pool, however many slots there are: payloads may be large."""
GATHER_SECONDS = 0.003
"""Debounce, so that concurrent requests share one read."""
JUDGED_SECONDS = 1.0
"""How often the share of wasted rows is judged."""
REST_SECONDS = 10.0
"""Pause after mostly wasted reads: with many workers on one pool, each would read for all."""

_rows_among = statements.ReadAmong((Job, "id"), rows=lambda ids: rows_to_run(Job.objects.filter(id__in=ids)))


@dataclass(slots=True)
class _Pool:
    """The prefetched rows of one pool.

    rows: by job id, with the monotonic time of their read. missed: jobs that were claimed without a row since
    the last read began. taken, wasted: numbers of rows since `judged_at`.
    """

    fleet: str
    slots: int = 0
    rows: dict[str, tuple[float, Mapping[str, Any]]] = field(default_factory=dict)
    missed: set[str] = field(default_factory=set)
    taken: int = 0
    wasted: int = 0
    judged_at: float = 0.0
    rests_until: float = 0.0

    def drop_read_before(self, then: float) -> None:
        """Drop the rows read before `then`; rows are ordered by the time of their read."""
        while self.rows:
            job_id, (read_at, _) = next(iter(self.rows.items()))
            if read_at >= then:
                break
            del self.rows[job_id]
            self.wasted += 1

    def keep(self, coming: Collection[str]) -> None:
        """Drop the rows of jobs that are not next any more."""
        gone = self.rows.keys() - coming
        for job_id in gone:
            del self.rows[job_id]
        self.wasted += len(gone)

    def judge(self, now: float) -> None:
        """Pause the prefetch where most rows went to other workers."""
        if now - self.judged_at >= JUDGED_SECONDS:
            if self.wasted > self.taken:
                self.rests_until = now + REST_SECONDS
            self.judged_at, self.taken, self.wasted = now, 0, 0


class RowPrefetch:
    """Reads rows ahead, in a thread of its own. Thread-safe; `take` and `request` never wait.

    short_seconds, fresh_seconds: attributes, because the simulator prefetches for all jobs and keeps rows
    longer.
    """

    def __init__(self, ports: Ports) -> None:
        self._ports = ports
        self.short_seconds, self.fresh_seconds = SHORT_SECONDS, FRESH_SECONDS
        self._lock = threading.Lock()
        self._pools: dict[str, _Pool] = {}
        self._requested_pools: set[str] = set()
        self.requested = threading.Event()
        """Set while rows are requested and not read."""
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="row-prefetch", daemon=True)

    def take(self, pool: str, job_id: str) -> Mapping[str, Any] | None:
        """Remove and return the job's row; None if it was not read lately or the job was not queued then."""
        with self._lock:
            known = self._pools.get(pool)
            if known is None:
                return None
            known.drop_read_before(self._ports.clock.monotonic() - self.fresh_seconds)
            _, row = known.rows.pop(job_id, (0.0, None))
            if row is None:
                known.missed.add(job_id)
            else:
                known.taken += 1
            return row

    def request(self, fleet: str, pool: str, *, slots: int, ran_seconds: float) -> None:
        """Request rows of the pool's next jobs. slots: busy ones of this worker. ran_seconds: how long the
        last job ran."""
        if ran_seconds >= self.short_seconds:
            return
        with self._lock:
            known = self._pools.setdefault(pool, _Pool(fleet))
            known.slots = slots
            now = self._ports.clock.monotonic()
            known.drop_read_before(now - self.fresh_seconds)
            if len(known.rows) >= min(slots, MAX_ROWS) or now < known.rests_until:
                return
            self._requested_pools.add(pool)
        if not self.requested.is_set():
            self.requested.set()

    def drop_stale(self) -> None:
        """Drop rows that no claim took in time (the watcher calls it: a pool may have become quiet)."""
        stale = self._ports.clock.monotonic() - self.fresh_seconds
        with self._lock:
            for known in self._pools.values():
                known.drop_read_before(stale)

    def read_requested(self) -> None:
        """Read rows for all requested pools: one step of the thread (the simulator calls it, too)."""
        self.requested.clear()
        with self._lock:
            requested, self._requested_pools = self._requested_pools, set()
        for pool in sorted(requested):
            known = self._pools[pool]
            now = self._ports.clock.monotonic()
            with self._lock:
                known.judge(now)
            if now < known.rests_until:
                continue
            try:
                self._read(pool, known, now)
            except (LeasingUnavailable, DatabaseError) as error:
                log.info("rows_not_prefetched", pool=pool, error=str(error).strip())
                known.rests_until = now + REST_SECONDS

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self, timeout_seconds: float = 1.0) -> None:
        """End the thread after the read that is under way."""
        self._stopping = True
        self.requested.set()
        if self._thread.ident is not None:
            self._thread.join(timeout_seconds)

    def _read(self, pool: str, known: _Pool, now: float) -> None:
        """Read the rows of the pool's next jobs. now: from before the read, so that no row counts as newer
        than it is."""
        most = min(known.slots * AHEAD, MAX_ROWS)
        with self._lock:
            known.missed.clear()
        coming = self._ports.leases(known.fleet).next_jobs(pool, most)
        with self._lock:
            known.keep(coming)
            unread = [job_id for job_id in coming if job_id not in known.rows]
        if not unread:
            return
        with self._ports.database():
            rows = _rows_among(unread)
        with self._lock:
            for row in rows:
                if row["state"] == JobState.QUEUED and row["id"] not in known.missed:
                    known.rows[row["id"]] = (now, row)

    def _run(self) -> None:
        while not self._stopping:
            self.requested.wait()
            time.sleep(GATHER_SECONDS)
            try:
                self.read_requested()
            except Exception:
                log.exception("row_prefetch_failed")
        connection.close()
