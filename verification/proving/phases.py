"""Runs one fault, from its preparation to its verdict."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from verification.proving.faults.base import Fault, wait
from verification.proving.recovery import Measurement, Recovery
from verification.proving.submit_answers import gateway_findings

if TYPE_CHECKING:
    from verification.proving.state import Live
    from verification.proving.trial import Trial

MANY_JOBS = 500
"""With so many jobs for one fault the queue is kept long; with fewer it is filled only when needed."""
LONG_QUEUE, SHORT_QUEUE = 40, 3
BACKLOG_JOBS = 10_000
_BUSY_SECONDS = 25.0
_WAIT_SECONDS = 30.0
_UPLOAD_SECONDS = 10.0
_ANCHORS = (
    ("video", (6.0, 2.5, 1.5)),
    ("speech", (5.0,)),
    ("image", (2.5, 2.0, 1.5)),
)
"""Model and seconds. With one more of the fault, a run for every slot that is long enough to be active when
the fault begins."""


@dataclass(slots=True)
class FaultResult:
    """The result of one fault. wrongs: findings; empty if good. skipped: why it was not run."""

    name: str
    expected: str
    bound_seconds: float
    measured_from: str = ""
    skipped: str = ""
    played_at: float = 0.0
    mended_at: float = 0.0
    recovery: Recovery | None = None
    wrongs: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    load_before: float = 0.0

    @property
    def verdict(self) -> str:
        """``ok``, ``WRONG`` or ``skipped``."""
        return "skipped" if self.skipped else "WRONG" if self.wrongs else "ok"

    def as_json(self) -> dict[str, Any]:
        seconds = self.recovery.seconds if self.recovery else None
        return {
            "fault": self.name,
            "expected": self.expected,
            "verdict": self.verdict,
            "recovery_seconds": None if seconds is None else round(seconds, 1),
            "bound_seconds": self.bound_seconds,
            "measured_from": self.measured_from,
            "wrong": self.wrongs,
            "notes": self.notes,
            "skipped": self.skipped,
            "played_at": self.played_at,
            "mended_at": self.mended_at,
            "load_average_before": round(self.load_before, 1),
            **(self.recovery.as_json() if self.recovery else {}),
        }

    def line(self) -> str:
        """Return the line for the terminal."""
        if self.skipped:
            return f"{self.name:<17} skipped: {self.skipped}"
        seconds = self.recovery.seconds if self.recovery else None
        took = "    –   " if seconds is None else f"{seconds:6.1f} s"
        hit = self.recovery.affected if self.recovery else 0
        text = f"{self.name:<17} {self.verdict:<7} {took} of {self.bound_seconds:.0f}  {hit} running jobs hit"
        return f"{text}  load {os.getloadavg()[0]:.1f}" + "".join(
            f"\n          ! {one}" for one in self.wrongs
        )


def play(trial: Trial, fault: Fault, allowance: int) -> FaultResult:
    """Run a fault. allowance: how many jobs it may use up."""
    from_play = fault.mends_itself or fault.recovers_while_on
    measured_from = "when it was played" if from_play else "when it was mended"
    result = FaultResult(fault.name, fault.expected, fault.bound_seconds, measured_from)
    result.skipped = fault.skip(trial)
    if result.skipped:
        return result
    level = LONG_QUEUE if allowance >= MANY_JOBS else SHORT_QUEUE
    live = _fill_slots(trial, fault, allowance, level, result)
    result.load_before = os.getloadavg()[0]
    result.played_at = time.time()
    played = time.monotonic()
    trial.feeder.trickles = True
    patience = fault.bound_seconds * 2 + _WAIT_SECONDS
    try:
        if count := fault.jobs_with_files:
            _begin_uploads(trial, count)
        fault.play(trial)
        if count:
            trial.feeder.release(count, with_files=True)
        affected = [one for one in live if fault.affects(one)]
        if fault.recovers_while_on:
            trial.feeder.level = level
            result.recovery = _measurement(trial, fault, affected).run(played, patience)
        wait(trial, fault.hold_seconds)
    finally:
        fault.mend(trial)
    result.mended_at = time.time()
    mended = time.monotonic()
    trial.feeder.level = level
    if result.recovery is None:
        zero = played if fault.mends_itself else mended
        result.recovery = _measurement(trial, fault, affected).run(zero, patience)
    trial.feeder.level, trial.feeder.trickles = 0, False
    result.wrongs += recovery_findings(result.recovery, fault.bound_seconds)
    result.wrongs += rerun_findings(trial, fault, affected)
    trial.watch.read_ledger()
    result.wrongs += gateway_findings(
        trial.watch.answers, fault.submit_answers, result.played_at, time.time()
    )
    result.wrongs += fault.wrongs(trial, affected)
    result.notes += fault.notes(trial)
    _settle(trial, fault, result)
    return result


def _begin_uploads(trial: Trial, count: int) -> None:
    """Submit so many jobs with files; return once some files are stored, and others are on their way."""
    trial.feeder.release(count, with_files=True)
    until = time.monotonic() + _UPLOAD_SECONDS
    while trial.feeder.counts()["uploads"] >= count and time.monotonic() < until:
        time.sleep(0.02)


def _measurement(trial: Trial, fault: Fault, affected: Sequence[Live]) -> Measurement:
    sick = set(fault.excluded_servers(trial))
    return Measurement(
        trial.state,
        trial.signs,
        affected=affected,
        killed=[one for one in affected if fault.kills(one)],
        slots=[slot for slot in trial.fleet.slots if trial.fleet.server_of(slot).name not in sick],
        works=fault.signs(trial),
    )


def _settle(trial: Trial, fault: Fault, result: FaultResult) -> None:
    """Wait until the system is whole for the next fault, or note that this one left something behind."""
    until = time.monotonic() + fault.settle_seconds
    while not (fault.is_over(trial) and trial.is_whole()):
        trial.check()
        if time.monotonic() > until:
            result.notes.append(f"{fault.settle_seconds:.0f} s later the system was not whole yet")
            return
        time.sleep(0.2)


def _fill_slots(trial: Trial, fault: Fault, allowance: int, level: int, result: FaultResult) -> list[Live]:
    """Return the runs at a moment at which every slot is busy, some of them for longer."""
    feeder = trial.feeder
    feeder.allowance = allowance
    trial.signs.read()
    trial.signs.forget()
    if fault.backlog:
        count = min(BACKLOG_JOBS, feeder.allowance, feeder.limit - feeder.released)
        if count > 0:
            feeder.release(count)
        _until_accepted(trial)
    for model, lengths in (("image", (fault.longest_run_seconds,)), *_ANCHORS):
        for seconds in lengths:
            feeder.release(1, model=f"{trial.prefix}-{model}", seconds=seconds)
    feeder.level = max(level, len(trial.fleet.slots))
    slots, seen = set(trial.fleet.slots), {}
    live: list[Live] = []
    until = time.monotonic() + _BUSY_SECONDS
    while time.monotonic() < until:
        trial.check()
        trial.signs.read()
        live = (trial.state.live() if trial.state is not None else None) or []
        busy = {one.slot for one in live} if trial.state is not None else set(trial.signs.last_began)
        seen.update(dict.fromkeys(busy & slots, time.monotonic()))
        recently = {slot for slot, at in seen.items() if time.monotonic() - at < 2.0}
        aimed = [one for one in live if fault.aims_at(trial, one)]
        held = trial.state is None or (any(one.polled for one in live) and aimed)
        if recently >= slots and held and len(busy) >= len(slots) - 1:
            return live
        time.sleep(0.02)
    idle = sorted(slots - seen.keys())
    if idle:
        result.wrongs.append(
            f"before it was played, {', '.join(idle)} did not work for {_BUSY_SECONDS:.0f} s"
        )
    return live


def _until_accepted(trial: Trial, seconds: float = 120.0) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        counts = trial.feeder.counts()
        if counts["released"] <= counts["accepted"] + counts["given_up"]:
            return
        time.sleep(0.1)


def recovery_findings(recovery: Recovery, bound: float) -> list[str]:
    """Return a finding if the recovery was late or missing."""
    if recovery.seconds is None:
        missing = ", ".join(recovery.waits_for[:6])
        return [f"did not recover in {bound * 2 + _WAIT_SECONDS:.0f} s; it still waits for {missing}"]
    return [f"took {recovery.seconds:.1f} s, the bound is {bound:.0f} s"] if recovery.seconds > bound else []


def rerun_findings(trial: Trial, fault: Fault, affected: Sequence[Live]) -> list[str]:
    """Return findings for attempts that should have been the last ones of their jobs and were not."""
    ran = [
        one for one in affected if fault.runs_once == "all" or (fault.runs_once == "polled" and one.polled)
    ]
    if trial.state is None or not ran:
        return []
    found = trial.state.attempts_of([one.job_id for one in ran]) or {}
    wrongs = []
    for one in ran:
        _, attempts = found.get(one.job_id, ("", []))
        later = [attempt for attempt in attempts if attempt.number > one.number]
        if later:
            why = next((a.error_code for a in attempts if a.id == one.attempt_id), "") or "unknown"
            first = f"attempt {one.attempt_id} on {one.slot}"
            wrongs.append(f"job {one.job_id} ({one.model}) ran again after {first}: {why}")
    return wrongs
