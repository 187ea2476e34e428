"""Measures the time until all that a fault affected runs again and all healthy slots work.

All parts are checked ten times a second; each counts until it first works."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gpus.leasing.values import SlotView
from verification.proving.fleet import Fleet
from verification.proving.ledger import Tail
from verification.proving.records import FINAL, AttemptRow

if TYPE_CHECKING:
    from verification.proving.state import Live, State

EVERY_SECONDS = 0.1
Sign = Callable[[float], bool]
"""Returns True if something works again; the argument is when the fault was repaired (Unix seconds)."""


@dataclass(slots=True)
class RunSigns:
    """The state of runs by the GPU servers' own logs."""

    fleet: Fleet
    last_began: dict[str, float] = field(default_factory=dict)
    running: dict[str, str] = field(default_factory=dict)
    ended_well: set[str] = field(default_factory=set)
    _tails: dict[str, Tail] = field(default_factory=dict)

    def read(self) -> None:
        """Read the new lines of all logs."""
        for gpu in self.fleet.gpus:
            for line in self._tails.setdefault(gpu.name, Tail(gpu.log)).read():
                if line["what"] == "boot":
                    self.running = {run: name for run, name in self.running.items() if name != gpu.name}
                elif line["what"] == "began":
                    self.last_began[line["slot"]] = line["started"]
                    self.running[line["attempt"]] = gpu.name
                elif line["what"] == "ended":
                    self.running.pop(line["attempt"], None)
                    if line["outcome"] == "success":
                        self.ended_well.add(line["attempt"])

    def still_runs(self, attempt_id: str) -> bool:
        """Return True if the attempt runs on its GPU, or ended there successfully."""
        return attempt_id in self.running or attempt_id in self.ended_well

    def forget(self) -> None:
        """Drop old ends before a new fault."""
        self.ended_well.clear()


@dataclass(slots=True)
class Recovery:
    """Seconds since the repair; None: not seen in time. load: of the machine, at the end."""

    affected: int
    jobs_seconds: float | None = None
    slots_seconds: float | None = None
    signs: dict[str, float | None] = field(default_factory=dict)
    waits_for: list[str] = field(default_factory=list)
    load: float = 0.0

    @property
    def seconds(self) -> float | None:
        parts = [self.jobs_seconds, self.slots_seconds, *self.signs.values()]
        return (
            None if any(part is None for part in parts) else max(part for part in parts if part is not None)
        )

    def as_json(self) -> dict[str, Any]:
        return {
            "affected_jobs": self.affected,
            "jobs_seconds": _rounded(self.jobs_seconds),
            "slots_seconds": _rounded(self.slots_seconds),
            "signs": {name: _rounded(seconds) for name, seconds in self.signs.items()},
            "load_average": round(self.load, 1),
        }


class Measurement:
    """One measurement of a recovery.

    affected: attempts that were live at the fault. killed: those whose worker is gone, so that only another
    attempt, or a raised epoch, can continue the job."""

    def __init__(
        self,
        state: State | None,
        signs: RunSigns,
        *,
        affected: Collection[Live],
        killed: Collection[Live],
        slots: Collection[str],
        works: Mapping[str, Sign],
    ) -> None:
        self._state, self._signs, self._works = state, signs, works
        self._killed = {live.attempt_id: live.epoch for live in killed}
        self._jobs = {live.job_id: live for live in affected}
        self._slots = set(slots)
        self._servers = sorted({slot.rpartition("/")[0] for slot in slots})
        self._missing_signs = dict(works)
        self._recovery = Recovery(len(self._jobs))

    def run(self, zero: float, limit_seconds: float) -> Recovery:
        """Measure for at most `limit_seconds`. zero: when the fault was repaired, monotonic."""
        mended_at = time.time() - (time.monotonic() - zero)
        found = self._recovery
        while True:
            now = time.monotonic() - zero
            self._look(mended_at)
            if not self._jobs and found.jobs_seconds is None:
                found.jobs_seconds = now
            if not self._slots and found.slots_seconds is None:
                found.slots_seconds = now
            for name in [name for name, works in self._missing_signs.items() if works(mended_at)]:
                del self._missing_signs[name]
                found.signs[name] = now
            over = found.seconds is not None and not self._missing_signs
            if over or now > limit_seconds:
                break
            time.sleep(EVERY_SECONDS)
        found.signs |= dict.fromkeys(self._missing_signs)
        found.waits_for = [*(f"job {job}" for job in self._jobs), *sorted(self._slots), *self._missing_signs]
        found.load = os.getloadavg()[0]
        return found

    def _look(self, mended_at: float) -> None:
        self._signs.read()
        self._slots -= {slot for slot in self._slots if self._signs.last_began.get(slot, 0.0) >= mended_at}
        state = self._state
        if state is None:
            return
        views = state.slot_views(self._servers) if self._jobs or self._slots else {}
        if self._jobs:
            waiting = state.queued(list(self._jobs)) or {}
            for job in [job for job, pool in waiting.items() if self._is_full(pool, views or {})]:
                del self._jobs[job]
            rows = state.attempts_of(list(self._jobs)) or {}
            for job, (job_state, attempts) in rows.items():
                if self._is_back(self._jobs[job], job_state, attempts, views):
                    del self._jobs[job]
        if self._slots and views is not None:
            waits = {pool: state.waiting(pool) != 0 for pool in {view.pool for view in views.values()}}
            self._slots -= {slot for slot in self._slots if self._slot_works(views.get(slot), waits)}

    def _is_back(
        self, before: Live, state: str, attempts: list[AttemptRow], views: Mapping[str, SlotView] | None
    ) -> bool:
        if state in FINAL:
            return True
        live = next((one for one in attempts if one.state in ("sent", "waiting")), None)
        if live is None:
            return False
        if live.id != before.attempt_id or live.epoch > before.epoch:
            return True
        return before.attempt_id not in self._killed and self._is_held(before, views)

    def _is_full(self, pool: str, views: Mapping[str, SlotView]) -> bool:
        """All slots of the pool work: a waiting job has all that it can have."""
        slots = [view for view in views.values() if view.pool == pool]
        working = [
            view for view in slots if view.state == "leased" and view.attempt_id in self._signs.running
        ]
        return bool(slots) and len(working) == len(slots)

    def _is_held(self, live: Live, views: Mapping[str, SlotView] | None) -> bool:
        """Its worker holds the lease, and the GPU runs it."""
        view = (views or {}).get(live.slot)
        held = view is not None and (view.state, view.attempt_id) == ("leased", live.attempt_id)
        return held and self._signs.still_runs(live.attempt_id)

    def _slot_works(self, view: SlotView | None, waits: Mapping[str, bool]) -> bool:
        """A run is active there, or no job waits for it."""
        if view is None:
            return False
        if view.state == "leased":
            attempt_id = view.attempt_id or ""
            return view.epoch > self._killed.get(attempt_id, 0) and attempt_id in self._signs.running
        return view.state == "free" and not view.resting and not waits[view.pool]


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 1)
