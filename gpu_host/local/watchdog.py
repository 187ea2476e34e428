"""Watches the runs and the GPU of a pinned worker. The rules are pure functions; `Watchdog` reads and
acts."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from gpu_host.handlers.code import Declared
from gpu_host.local.gpu import LocalGpu
from gpu_host.local.nvml import GpuReading, sick_by
from gpu_host.local.orders import Run
from gpus.errors import RunTimedOut

IDLE_PERCENT = 5.0
"""A GPU below this does nothing worth waiting for; without one, a process below this share of a core."""
READ_SECONDS = 5.0
KERNEL_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class Activity:
    """The GPU over the last looks. idle_since: monotonic; None while it works, or nobody can say."""

    idle_since: float | None = None


def observe(before: Activity, utilisation: float | None, now: float) -> Activity:
    """utilisation: percent; None: the card does not tell."""
    if utilisation is None or utilisation >= IDLE_PERCENT:
        return Activity()
    return Activity(now if before.idle_since is None else before.idle_since)


def hung(runs: Sequence[Run], models: Mapping[str, Declared], seen: Activity, now: float) -> list[Run]:
    """Those that said nothing for their model's `quiet_seconds`, while the GPU was idle all that time: a slow
    run is not dead, and a busy GPU works for somebody."""
    if seen.idle_since is None:
        return []
    found = []
    for run in runs:
        quiet = models[run.order.model].quiet_seconds if run.order.model in models else None
        if quiet is not None and now - run.last_sign >= quiet and now - seen.idle_since >= quiet:
            found.append(run)
    return found


def why_sick(reading: GpuReading | None, error: str, ecc_at_start: int | None) -> str:
    """Return why the GPU may take no runs; empty: it may."""
    if reading is None:
        return f"the GPU can't be read: {error}"
    if ecc_at_start is not None and (reading.ecc_errors or 0) > ecc_at_start:
        return f"{reading.ecc_errors - ecc_at_start} uncorrected ECC errors" if reading.ecc_errors else ""
    return sick_by(reading.xids)


class Watchdog:
    """`look` is one step, called every second. read: None without a GPU: then the process' use of the CPU
    tells whether it works. cpu: that, in percent of a core; None: not known. happened: (event, fields), for
    the log."""

    def __init__(
        self,
        gpu: LocalGpu,
        read: Callable[[], GpuReading] | None,
        *,
        cpu: Callable[[], float | None] = lambda: None,
        happened: Callable[..., None] = lambda event, **fields: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._gpu, self._read, self._cpu, self._happened, self._clock = gpu, read, cpu, happened, clock
        self._seen = Activity()
        self._read_at = self._kernel_at = -1e9
        self._ecc: int | None = None
        self._xids: Mapping[int, int] = {}
        self._blind = False

    def step(self) -> None:
        now = self._clock()
        if now - self._read_at >= READ_SECONDS:
            self._read_at = now
            if self._read is None:
                self._seen = observe(self._seen, self._cpu(), now)
            else:
                self._examine(self._read, now)
        for run in hung(self._gpu.runs(), self._gpu.models, self._seen, now):
            quiet = self._gpu.models[run.order.model].quiet_seconds
            where = "on an idle GPU" if self._read else "and its process used no CPU"
            error = RunTimedOut(f"No progress for {quiet:.0f} s {where}: it was killed.")
            error.suspect, error.process_died = False, True
            self._gpu.stop_run(run.order.attempt, why=error)

    def _examine(self, read: Callable[[], GpuReading], now: float) -> None:
        try:
            reading = read()
        except OSError as failure:
            self._gpu.sick = why_sick(None, str(failure), self._ecc)
            self._seen = Activity()
            self._kernel_at = -1e9  # would hang with the driver; due as soon as that answers
            return
        self._seen = observe(self._seen, reading.utilisation, now)
        if self._ecc is None:
            self._ecc = reading.ecc_errors or 0
        self._note_xids(reading.xids)
        self._warn_if_blind(reading.utilisation)
        # said before a kernel is tried, which may take its time, too
        self._gpu.sick = why_sick(reading, "", self._ecc) or self._gpu.kernel_why
        due = now - self._kernel_at >= KERNEL_SECONDS or self._gpu.kernel_why
        if due and self._gpu.probe() is not None:  # not asked is no proof, of either
            self._kernel_at = now
        self._gpu.sick = why_sick(reading, "", self._ecc) or self._gpu.kernel_why

    def _note_xids(self, xids: Mapping[int, int]) -> None:
        """Whatever one means, a small kernel tells whether the GPU still computes."""
        for xid, times in xids.items():
            if times > self._xids.get(xid, 0):
                self._happened("gpu_xid", xid=xid, times=times, sick=bool(sick_by({xid: times})))
                self._kernel_at = -1e9
        self._xids = xids

    def _warn_if_blind(self, utilisation: float | None) -> None:
        """A hang can't be told from work there, and a busy GPU must not lose its run."""
        patient = [model for model, said in self._gpu.models.items() if said.quiet_seconds is not None]
        if utilisation is None and patient and not self._blind:
            self._blind = True
            self._happened("hangs_not_seen", why="this GPU tells no utilisation", models=patient)
