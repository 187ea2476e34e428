"""Rows of jobs that a slot will probably be given next, read while the slots still run others.

Between two short jobs of a slot a read of the database costs a tenth of the second one's run. So the line is
asked who comes next, which changes nothing, and those rows are read at once, a handful in one statement. What
was read is a hint and as old as `FRESH_SECONDS` at most: that the job still waits is decided where its start
is written, and what changed otherwise (a cancel) is seen by the watcher's look, as for any job that runs.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import structlog
from django.db import DatabaseError, connection

from foundation.database import statements
from gpus.errors import LeasingUnavailable
from jobs.domain.states import JobState
from jobs.models import Job
from jobs.ports import Ports

log = structlog.get_logger()

OF_JOB = ("max_retries", "max_run_seconds", "deadline_at", "cancel_requested_at", "attempts_made")
"""What a run needs of its job's row, beside its payload and that it waits."""

SHORT_SECONDS = 1.0
"""Before a job that runs for longer nobody notices a read."""
FRESH_SECONDS = 1.0
AHEAD = 2
"""Rows for each slot at work; when there are fewer than one, the line is looked at again."""
MOST = 32
"""Rows at hand, however many slots there are: payloads may be large."""
GATHER_SECONDS = 0.003
"""From the wish to the look: whoever wished is on its way to its GPU first, and others join in."""
JUDGED_SECONDS = 1.0
REST_SECONDS = 10.0
"""After rows that mostly went to other workers: many on one pool would each read for all."""

_rows_among = statements.ReadAmong(
    (Job, "id"), rows=lambda ids: Job.objects.filter(id__in=ids).values("id", "state", "payload", *OF_JOB)
)


@dataclass(slots=True)
class _Pool:
    """rows: by job, with when each was read. missed: jobs that were claimed without, since the last look
    began. taken, wasted: of the rows, since `judged_at`."""

    fleet: str
    slots: int = 0
    rows: dict[str, tuple[float, Mapping[str, Any]]] = field(default_factory=dict)
    missed: set[str] = field(default_factory=set)
    taken: int = 0
    wasted: int = 0
    judged_at: float = 0.0
    rests_until: float = 0.0

    def forget_read_before(self, then: float) -> None:
        """They stand in the order in which they were read."""
        while self.rows:
            job_id, (read_at, _) = next(iter(self.rows.items()))
            if read_at >= then:
                break
            del self.rows[job_id]
            self.wasted += 1

    def keep(self, coming: Collection[str]) -> None:
        """Others are gone, and would stand here for rows that are at hand."""
        gone = self.rows.keys() - coming
        for job_id in gone:
            del self.rows[job_id]
        self.wasted += len(gone)

    def judge(self, now: float) -> None:
        """What mostly goes to other workers is not worth reading."""
        if now - self.judged_at >= JUDGED_SECONDS:
            if self.wasted > self.taken:
                self.rests_until = now + REST_SECONDS
            self.judged_at, self.taken, self.wasted = now, 0, 0


class ReadAhead:
    """Safe for threads: `take` and `want` wait for nobody, `look` does the reading, and has one caller.
    short_seconds, fresh_seconds: the simulator reads for all jobs, and keeps rows for long."""

    def __init__(self, ports: Ports) -> None:
        self._ports = ports
        self.short_seconds, self.fresh_seconds = SHORT_SECONDS, FRESH_SECONDS
        self._lock = threading.Lock()
        self._pools: dict[str, _Pool] = {}
        self._wanting: set[str] = set()
        self.wanted = threading.Event()
        """Whether `look` has something to do."""
        self._stopping = False
        self._thread = threading.Thread(target=self._keep_looking, name="read-ahead", daemon=True)

    def take(self, pool: str, job_id: str) -> Mapping[str, Any] | None:
        """The row, once, if it was read a moment ago and waited then."""
        with self._lock:
            known = self._pools.get(pool)
            if known is None:
                return None
            known.forget_read_before(self._ports.clock.monotonic() - self.fresh_seconds)
            _, row = known.rows.pop(job_id, (0.0, None))
            if row is None:
                known.missed.add(job_id)
            else:
                known.taken += 1
            return row

    def want(self, fleet: str, pool: str, *, slots: int, ran_seconds: float) -> None:
        """A job of the pool ends, and its slot goes on. slots: that work here."""
        if ran_seconds >= self.short_seconds:
            return
        with self._lock:
            known = self._pools.setdefault(pool, _Pool(fleet))
            known.slots = slots
            now = self._ports.clock.monotonic()
            known.forget_read_before(now - self.fresh_seconds)
            if len(known.rows) >= min(slots, MOST) or now < known.rests_until:
                return
            self._wanting.add(pool)
        if not self.wanted.is_set():
            self.wanted.set()

    def let_go(self) -> None:
        """Of what was read and nobody took in time (the watcher calls it: a pool may have become quiet)."""
        stale = self._ports.clock.monotonic() - self.fresh_seconds
        with self._lock:
            for known in self._pools.values():
                known.forget_read_before(stale)

    def look(self) -> None:
        """Reads for all pools where it was wanted (a step: the simulator calls it)."""
        self.wanted.clear()
        with self._lock:
            wanting, self._wanting = self._wanting, set()
        for pool in sorted(wanting):
            known = self._pools[pool]
            now = self._ports.clock.monotonic()
            with self._lock:
                known.judge(now)
            if now < known.rests_until:
                continue
            try:
                self._read(pool, known, now)
            except (LeasingUnavailable, DatabaseError) as error:
                log.info("not_read_ahead", pool=pool, error=str(error).strip())
                known.rests_until = now + REST_SECONDS

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout_seconds: float = 1.0) -> None:
        """What it reads at the moment is read to its end, for nobody."""
        self._stopping = True
        self.wanted.set()
        if self._thread.ident is not None:
            self._thread.join(timeout_seconds)

    def _read(self, pool: str, known: _Pool, now: float) -> None:
        """now: before anything was asked; rows are no younger than that."""
        most = min(known.slots * AHEAD, MOST)
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

    def _keep_looking(self) -> None:
        while not self._stopping:
            self.wanted.wait()
            time.sleep(GATHER_SECONDS)
            try:
                self.look()
            except Exception:
                log.exception("read_ahead_failed")
        connection.close()
