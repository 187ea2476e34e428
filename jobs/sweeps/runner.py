"""Runs sweeps: `run_sweep(name)`, or `run_sweep("tick")` for all that are due, in the one process that is
asked to.

Beat sends one tick a second to a queue that one worker process consumes. In this process no sweep runs twice
at once; should two processes run them, that costs work and nothing else: all of them move rows by
compare-and-set. Slow sweeps have a thread each, so that a server's time-out never delays the wakes, and
fleets whose Redis hangs are passed over: a call that had to time out makes its fleet silent, and calls to a
silent fleet are refused without waiting, until a question in the background is answered. So a hung node costs
the sweeps of all other fleets one time-out, however many fleets it holds and however long it hangs.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, replace
from functools import lru_cache, partial
from typing import Any, cast

import structlog
from django.db import DatabaseError, connection

import jobs.ports
from gpus.errors import LeasingUnavailable
from gpus.leasing.connect import TIMEOUT_SECONDS
from gpus.leasing.contract import Leases
from jobs.ports import Ports
from jobs.sweeps.base import TICK, Ran, SweepCount, write_runs
from jobs.sweeps.registry import Entry, Sweeps

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


def run_sweep(name: str) -> dict[str, Any]:
    """Runs one sweep, or with `tick` every one that is due; what they found, by name. A slow one that a tick
    started in a thread is missing. Raises KeyError for an unknown name."""
    runner = _of_this_process()
    if name == TICK:
        return {one: _as_dict(count) for one, count in runner.tick().items()}
    count = runner.run(name)
    return {} if count is None else {name: _as_dict(count)}


@lru_cache(maxsize=1)
def _of_this_process() -> Runner:
    return Runner(jobs.ports.production_ports(), Sweeps().entries)


def _as_dict(count: SweepCount) -> dict[str, Any]:
    return {**asdict(count), "notes": list(count.notes)}


RECONCILE_EVERY = 5
"""Steps, each a second long: so soon a job is in line that such a web has accepted."""


class LayoutOverlapSweeper:
    """Runs the sweeps of a process whose key layout is in use while processes of another layout live: their
    sweepers consume some of beat's ticks and do nothing with the index, and their webs can't push tickets."""

    def __init__(self) -> None:
        self._steps = 0
        self._sweeping = threading.Lock()

    def step(self) -> None:
        """Returns at once; while the last one goes on it does nothing."""
        self._steps += 1
        if self._sweeping.acquire(blocking=False):
            threading.Thread(target=self._sweep, name="sweeps-in-company", daemon=True).start()

    @property
    def is_sweeping(self) -> bool:
        return self._sweeping.locked()

    def _sweep(self) -> None:
        try:
            run_sweep(TICK)
            if self._steps % RECONCILE_EVERY == 0:
                run_sweep("reconcile")
        finally:
            connection.close()
            self._sweeping.release()


log = structlog.get_logger(__name__)

HUNG_SECONDS = TIMEOUT_SECONDS / 2
"""A call that failed after so long was not refused, it timed out."""
ASK_AGAIN_SECONDS = 1.0


def past_silent_fleets(ports: Ports) -> Ports:
    """The same ports, whose lease layers refuse at once while their Redis hangs."""
    return replace(ports, leases=_SilentFleets(ports).leases)


class _SilentFleets:
    def __init__(self, ports: Ports) -> None:
        self._ports = ports
        self._lock = threading.Lock()
        self._silent: set[str] = set()
        self._answered_at: dict[str, float] = {}

    def leases(self, fleet: str) -> Leases:
        return cast(Leases, _Watched(fleet, self))

    def call(self, fleet: str, name: str, *args: Any, **kwargs: Any) -> Any:
        """Raises what the method raises, and LeasingUnavailable for a silent fleet."""
        if fleet in self._silent:
            raise LeasingUnavailable("Redis does not answer: it did not the last time")
        began = self._ports.clock.monotonic()
        try:
            answer = getattr(self._ports.leases(fleet), name)(*args, **kwargs)
        except LeasingUnavailable as error:
            if self._ports.clock.monotonic() - began >= HUNG_SECONDS:
                self._mark_silent(fleet, began, error)
            raise
        self._answered_at[fleet] = self._ports.clock.monotonic()
        return answer

    def _mark_silent(self, fleet: str, since: float, error: LeasingUnavailable) -> None:
        """Its node may hold others, too: those that did not answer meanwhile are asked at the same time."""
        with self._lock:
            unheard = {other for other, at in self._answered_at.items() if at < since}
            found = ({fleet} | unheard) - self._silent
            self._silent |= found
        log.warning("fleet_silent", fleet=fleet, error=str(error))
        for other in found:
            self._probe_after(ASK_AGAIN_SECONDS if other == fleet else 0.0, other)

    def _probe_after(self, seconds: float, fleet: str) -> None:
        try:
            self._ports.after(seconds, self._probe_of(fleet))
        except RuntimeError as error:  # no thread can be started: the next sweep's call asks
            log.warning("silent_fleet_not_asked", fleet=fleet, error=str(error))
            self._mark_answering(fleet)

    def _probe_of(self, fleet: str) -> Callable[[], None]:
        def ask() -> None:
            began = self._ports.clock.monotonic()
            try:
                self._ports.leases(fleet).generation()
            except Exception as error:  # whatever it is: a fleet must not stay silent
                if self._ports.clock.monotonic() - began >= HUNG_SECONDS:
                    self._probe_after(ASK_AGAIN_SECONDS, fleet)
                    return
                log.info("fleet_refuses", fleet=fleet, error=str(error))
            self._answered_at[fleet] = self._ports.clock.monotonic()
            self._mark_answering(fleet)

        return ask

    def _mark_answering(self, fleet: str) -> None:
        with self._lock:
            self._silent.discard(fleet)
        log.info("fleet_asked_again", fleet=fleet)


class _Watched:
    """One fleet's lease layer, for sweeps."""

    def __init__(self, fleet: str, fleets: _SilentFleets) -> None:
        self._fleet, self._fleets = fleet, fleets

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            return self._fleets.call(self._fleet, name, *args, **kwargs)

        return call
