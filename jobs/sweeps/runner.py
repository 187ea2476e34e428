"""Runs one sweep (`Runner.run_named(name)`), or all that are due (`Runner.run_named("tick")`).

Beat sends one tick per second to a queue that one worker process consumes. Within a process, no sweep runs
twice at once; across processes that is harmless, because sweeps move rows by compare-and-set. Slow sweeps run
in a thread each, so that a server's time-out never delays the wakes.
`jobs.sweeps.fleet_circuits` guards them against a hung Redis.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial

import structlog
from django.db import DatabaseError, connection

from jobs.ports import Ports
from jobs.sweeps.base import TICK, SweepCount, UnwrittenRuns, write_runs
from jobs.sweeps.fleet_circuits import with_fleet_circuits
from jobs.sweeps.registry import Entry, Question

log = structlog.get_logger(__name__)

EARLY_SECONDS = 0.5
"""Tolerance: a sweep is due this much before its period ends, because ticks are not exactly 1 s apart."""
WRITE_SECONDS = 5.0
"""Period of writing the `SweepRun` rows."""


class Runner:
    """Runs the sweeps of one process and records their runs. The task `jobs.tasks.sweep` gets it at boot.

    sweeps: returns the entries; called at every tick, so that changed settings apply. in_thread: starts a
    slow sweep; default: a daemon thread.
    """

    def __init__(
        self,
        ports: Ports,
        sweeps: Callable[[], Mapping[str, Entry]],
        *,
        in_thread: Callable[[Callable[[], None]], None] | None = None,
    ) -> None:
        self._ports = with_fleet_circuits(ports)
        self._sweeps = sweeps
        self._in_thread = in_thread or _start_thread
        self._lock = threading.Lock()
        self._running: set[str] = set()
        self._began_at: dict[str, float] = {}
        self._unwritten: dict[str, UnwrittenRuns] = {}
        self._last_notes: dict[str, tuple[str, ...]] = {}
        self._written_at: float | None = None
        self._is_learning = False

    def run_named(self, name: str) -> None:
        """Run one sweep, or with `tick` all that are due. Raises KeyError for an unknown name."""
        if name == TICK:
            self.tick()
        else:
            self.run(name)

    def tick(self) -> dict[str, SweepCount]:
        """Run or start the sweeps that are due; return the counts, by name, of those that ran in this thread.
        Empty if another tick is running."""
        now = self._ports.clock.monotonic()
        if not self._enter(TICK, now):
            return {}
        try:
            self._is_learning = self._ports.clock_watch.is_learning()
            done = {}
            answers: dict[Question, bool | None] = {}
            in_use = self._ports.layouts.is_layout_in_use()
            for name, entry in self._sweeps().items():
                if not (in_use or entry.any_layout):
                    continue  # a process whose key layout is in use runs it
                if not self._is_due(name, entry, now) or not self._enter(name, now):
                    continue
                is_needed = self._is_needed(name, entry, answers)
                if is_needed and entry.slow:
                    self._in_thread(partial(self._run_in_thread, name, entry))
                    continue
                count = None if is_needed is None else SweepCount()
                if is_needed:
                    count = self._run(name, entry)
                self._leave(name, count)
                if count is not None:
                    done[name] = count
        finally:
            self._leave(TICK, SweepCount())
        self._write()
        return done

    def run(self, name: str) -> SweepCount | None:
        """Run one sweep now, in this thread; None if it is already running or failed. Raises KeyError."""
        entry = self._sweeps()[name]
        if not self._enter(name, self._ports.clock.monotonic()):
            return None
        count = self._run(name, entry)
        self._leave(name, count)
        self._write()
        return count

    def _is_due(self, name: str, entry: Entry, now: float) -> bool:
        """now: monotonic seconds at which the tick began, the same for all its sweeps: one that takes long
        delays no period."""
        began = self._began_at.get(name)
        return began is None or not 0 <= now - began < entry.period_seconds - EARLY_SECONDS

    def _is_needed(self, name: str, entry: Entry, answers: dict[Question, bool | None]) -> bool | None:
        """Return None if the question failed. answers: of this tick; sweeps may share a question."""
        question = entry.is_needed
        if question is None:
            return True
        if question not in answers:
            try:
                answers[question] = question(self._ports)
            except Exception:
                log.exception("sweep_failed", sweep=name)
                answers[question] = None
        return answers[question]

    def _enter(self, name: str, now: float) -> bool:
        """Mark the sweep as running since `now`, in monotonic seconds; False if it already is."""
        with self._lock:
            if name in self._running:
                return False
            self._running.add(name)
            self._began_at[name] = now
            return True

    def _leave(self, name: str, count: SweepCount | None) -> None:
        """Mark the sweep as not running. A completed run (count is not None) resets the sweep's age, as of
        now and not of the later write."""
        with self._lock:
            self._running.discard(name)
            if count is not None:
                before = self._unwritten.get(name)
                self._unwritten[name] = UnwrittenRuns(
                    self._ports.clock.now(), before.count + count if before else count
                )

    def _run(self, name: str, entry: Entry) -> SweepCount | None:
        try:
            count = entry.sweep(self._ports)
        except Exception:
            log.exception("sweep_failed", sweep=name)
            return None
        if count.repaired or count.failed or count.notes != self._last_notes.get(name, ()):
            log.info(
                "sweep_done",
                sweep=name,
                looked=count.looked,
                repaired=count.repaired,
                failed=count.failed,
                notes=list(count.notes),
            )
        self._last_notes[name] = count.notes
        return count

    def _run_in_thread(self, name: str, entry: Entry) -> None:
        try:
            self._leave(name, self._run(name, entry))
        finally:
            connection.close()

    def _write(self) -> None:
        if self._is_learning:
            return  # until the clocks are compared, the time of this process may be wrong
        now = self._ports.clock.monotonic()
        if self._written_at is not None and 0 <= now - self._written_at < WRITE_SECONDS:
            return
        with self._lock:
            runs, self._unwritten = self._unwritten, {}
        self._written_at = now
        with suppress(DatabaseError):  # the growing ages in /metrics show the failure
            write_runs(runs)


def _start_thread(work: Callable[[], None]) -> None:
    threading.Thread(target=work, name="sweep", daemon=True).start()
