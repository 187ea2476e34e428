"""Runs the sweeps that are due, in the one process that is asked to.

Beat sends one tick a second to a queue that one worker process consumes. In this process no sweep runs twice
at once; should two processes run them, that costs work and nothing else: all of them move rows by
compare-and-set. Slow sweeps have a thread each, so that a server's time-out never delays the wakes, and
fleets whose Redis hangs are passed over (`silent_fleets`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial

import structlog
from django.db import DatabaseError, connection

from jobs.ports import Ports
from jobs.sweeps.base import Ran, SweepCount, write_runs
from jobs.sweeps.names import TICK
from jobs.sweeps.registry import Entry
from jobs.sweeps.silent_fleets import past_silent_fleets

log = structlog.get_logger(__name__)

EARLY_SECONDS = 0.5
"""A tick that comes this much early still counts: ticks are a second apart, more or less."""
WRITE_SECONDS = 5.0


class Runner:
    """sweeps: read at every tick, so that settings count. in_thread: how a slow one is started."""

    def __init__(
        self,
        ports: Ports,
        sweeps: Callable[[], Mapping[str, Entry]],
        *,
        in_thread: Callable[[Callable[[], None]], None] | None = None,
    ) -> None:
        self._ports = past_silent_fleets(ports)
        self._sweeps = sweeps
        self._in_thread = in_thread or _start_thread
        self._lock = threading.Lock()
        self._running: set[str] = set()
        self._began_at: dict[str, float] = {}
        self._unwritten: dict[str, Ran] = {}
        self._said: dict[str, tuple[str, ...]] = {}
        self._written_at: float | None = None
        self._is_learning = False

    def tick(self) -> dict[str, SweepCount]:
        """Runs or starts what is due; what ran in this thread, by name. Another tick under way: nothing."""
        if not self._enter(TICK):
            return {}
        try:
            self._is_learning = self._ports.clocks.is_learning()
            done = {}
            leads = self._ports.layouts.leads()
            for name, entry in self._sweeps().items():
                if not (leads or entry.any_layout):
                    continue  # that of a process whose layout is in use
                if not self._is_due(name, entry) or not self._enter(name):
                    continue
                if entry.slow and self._is_needed(name, entry):
                    self._in_thread(partial(self._run_apart, name, entry))
                    continue
                count = SweepCount() if entry.slow else self._run(name, entry)
                self._leave(name, count)
                if count is not None:
                    done[name] = count
        finally:
            self._leave(TICK, SweepCount())
        self._write()
        return done

    def run(self, name: str) -> SweepCount | None:
        """One sweep now, in this thread. None: it is under way, or it failed. Raises KeyError."""
        entry = self._sweeps()[name]
        if not self._enter(name):
            return None
        count = self._run(name, entry)
        self._leave(name, count)
        self._write()
        return count

    def _is_due(self, name: str, entry: Entry) -> bool:
        began = self._began_at.get(name)
        now = self._ports.clock.monotonic()
        return began is None or not 0 <= now - began < entry.period_seconds - EARLY_SECONDS

    def _is_needed(self, name: str, entry: Entry) -> bool:
        try:
            return entry.is_needed is None or entry.is_needed(self._ports)
        except Exception:
            log.exception("sweep_failed", sweep=name)
            return False

    def _enter(self, name: str) -> bool:
        with self._lock:
            if name in self._running:
                return False
            self._running.add(name)
            self._began_at[name] = self._ports.clock.monotonic()
            return True

    def _leave(self, name: str, count: SweepCount | None) -> None:
        """Only a run that came to its end makes the sweep's age young: of then, whenever it is written."""
        with self._lock:
            self._running.discard(name)
            if count is not None:
                before = self._unwritten.get(name)
                self._unwritten[name] = Ran(
                    self._ports.clock.now(), before.count + count if before else count
                )

    def _run(self, name: str, entry: Entry) -> SweepCount | None:
        try:
            count = entry.sweep(self._ports)
        except Exception:
            log.exception("sweep_failed", sweep=name)
            return None
        if count.repaired or count.failed or count.notes != self._said.get(name, ()):
            log.info(
                "sweep_done",
                sweep=name,
                looked=count.looked,
                repaired=count.repaired,
                failed=count.failed,
                notes=list(count.notes),
            )
        self._said[name] = count.notes
        return count

    def _run_apart(self, name: str, entry: Entry) -> None:
        try:
            self._leave(name, self._run(name, entry))
        finally:
            connection.close()

    def _write(self) -> None:
        if self._is_learning:
            return  # else it, and others, would take its time for that of a process that knows it
        now = self._ports.clock.monotonic()
        if self._written_at is not None and 0 <= now - self._written_at < WRITE_SECONDS:
            return
        with self._lock:
            runs, self._unwritten = self._unwritten, {}
        self._written_at = now
        with suppress(DatabaseError):  # the ages grow, which is what they are for
            write_runs(runs)


def _start_thread(work: Callable[[], None]) -> None:
    threading.Thread(target=work, name="sweep", daemon=True).start()
