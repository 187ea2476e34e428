"""Runs one sweep (`Runner.run_named(name)`), or all that are due (`Runner.run_named("tick")`).

Beat sends one tick per second to a queue that one worker process consumes. Within a process, no sweep runs
twice at once; across processes that is harmless, because sweeps move rows by compare-and-set. Slow sweeps run
in a thread each, so that a server's time-out never delays the wakes. A circuit breaker per fleet guards
against a hung Redis: a call that timed out opens the fleet's circuit, and calls fail at once until a probe in
the background is answered. So a hung node costs the other fleets' sweeps one time-out.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, cast

import structlog
from django.db import DatabaseError, connection

from gpus.errors import LeasingUnavailable
from gpus.leasing.connect import TIMEOUT_SECONDS
from gpus.leasing.contract import Leases
from jobs.ports import Ports
from jobs.sweeps.base import TICK, SweepCount, UnwrittenRuns, write_runs
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
            leads = self._ports.layouts.is_layout_in_use()
            for name, entry in self._sweeps().items():
                if not (leads or entry.any_layout):
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


RECONCILE_EVERY = 5
"""Steps of one second: the longest time until a job accepted by a web process of another layout is queued."""


class LayoutOverlapSweeper:
    """Runs the sweeps, in a process whose key layout is in use, while processes of another layout live.

    Needed because sweep processes of the other layout consume some of beat's ticks without touching the
    index, and its web processes can't push tickets. run_named: as of `Runner`.
    """

    def __init__(self, run_named: Callable[[str], None]) -> None:
        self._run_named = run_named
        self._steps = 0
        self._sweeping = threading.Lock()

    def step(self) -> None:
        """Start a sweep in a thread, unless the last one still runs. Called once per second."""
        self._steps += 1
        if self._sweeping.acquire(blocking=False):
            threading.Thread(target=self._sweep, name="sweeps-in-company", daemon=True).start()

    @property
    def is_sweeping(self) -> bool:
        return self._sweeping.locked()

    def _sweep(self) -> None:
        try:
            self._run_named(TICK)
            if self._steps % RECONCILE_EVERY == 0:
                self._run_named("reconcile")
        finally:
            connection.close()
            self._sweeping.release()


log = structlog.get_logger(__name__)

HUNG_SECONDS = TIMEOUT_SECONDS / 2
"""A call that failed after this time timed out; a refused connection fails sooner."""
PROBE_SECONDS = 1.0
"""Pause between two probes of a fleet with an open circuit."""


def with_fleet_circuits(ports: Ports) -> Ports:
    """Return the ports with a circuit breaker around each fleet's lease layer."""
    return replace(ports, leases=_FleetCircuits(ports).leases)


class _FleetCircuits:
    """Circuit breakers of all fleets: a circuit opens after a time-out and closes when a probe is
    answered."""

    def __init__(self, ports: Ports) -> None:
        self._ports = ports
        self._lock = threading.Lock()
        self._open: set[str] = set()
        self._answered_at: dict[str, float] = {}

    def leases(self, fleet: str) -> Leases:
        return cast(Leases, _GuardedLeases(fleet, self))

    def call(self, fleet: str, name: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method of the fleet's lease layer. Raises LeasingUnavailable if the circuit is open, and the
        exceptions of the method."""
        if fleet in self._open:
            raise LeasingUnavailable("Redis does not answer: the last call timed out")
        began = self._ports.clock.monotonic()
        try:
            answer = getattr(self._ports.leases(fleet), name)(*args, **kwargs)
        except LeasingUnavailable as error:
            if self._ports.clock.monotonic() - began >= HUNG_SECONDS:
                self._open_circuit(fleet, began, error)
            raise
        self._answered_at[fleet] = self._ports.clock.monotonic()
        return answer

    def _open_circuit(self, fleet: str, since: float, error: LeasingUnavailable) -> None:
        """Open the circuit, also of the fleets that have not answered since then: they may be on the same
        node. Those are probed at once."""
        with self._lock:
            unanswered = {other for other, at in self._answered_at.items() if at < since}
            opened = ({fleet} | unanswered) - self._open
            self._open |= opened
        log.warning("fleet_circuit_opened", fleet=fleet, error=str(error))
        for other in opened:
            self._probe_after(PROBE_SECONDS if other == fleet else 0.0, other)

    def _probe_after(self, seconds: float, fleet: str) -> None:
        try:
            self._ports.after(seconds, self._probe_of(fleet))
        except RuntimeError as error:  # no thread can be started: the next call of a sweep is the probe
            log.warning("fleet_probe_not_started", fleet=fleet, error=str(error))
            self._close_circuit(fleet)

    def _probe_of(self, fleet: str) -> Callable[[], None]:
        def probe() -> None:
            began = self._ports.clock.monotonic()
            try:
                self._ports.leases(fleet).generation()
            except Exception as error:  # whatever it is: the circuit must not stay open
                if self._ports.clock.monotonic() - began >= HUNG_SECONDS:
                    self._probe_after(PROBE_SECONDS, fleet)
                    return
                log.info("fleet_probe_refused", fleet=fleet, error=str(error))
            self._answered_at[fleet] = self._ports.clock.monotonic()
            self._close_circuit(fleet)

        return probe

    def _close_circuit(self, fleet: str) -> None:
        with self._lock:
            self._open.discard(fleet)
        log.info("fleet_circuit_closed", fleet=fleet)


class _GuardedLeases:
    """One fleet's lease layer behind its circuit breaker."""

    def __init__(self, fleet: str, circuits: _FleetCircuits) -> None:
        self._fleet, self._circuits = fleet, circuits

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            return self._circuits.call(self._fleet, name, *args, **kwargs)

        return call
