"""Watches the runs and the GPU of a pinned worker: kills runs that hang, and marks a faulty GPU.

The rules are pure functions; `Watchdog` reads and acts."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from gpu_host.handlers.code import Declared
from gpu_host.local.gpu import LocalGpu
from gpu_host.local.nvml import GpuReading, describe_fatal_xids
from gpu_host.local.orders import Run
from gpus.errors import RunTimedOut

IDLE_PERCENT = 5.0
"""Utilisation below this is idle; without a GPU, CPU use of the process below this share of a core."""
READ_SECONDS = 5.0
KERNEL_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class Activity:
    """Activity of the GPU over the last readings. idle_since: monotonic; None while busy or unknown."""

    idle_since: float | None = None


def observe(before: Activity, utilisation: float | None, now: float) -> Activity:
    """Return the activity after one more reading. utilisation: percent; None: not reported."""
    if utilisation is None or utilisation >= IDLE_PERCENT:
        return Activity()
    return Activity(now if before.idle_since is None else before.idle_since)


def hung_runs(runs: Sequence[Run], models: Mapping[str, Declared], seen: Activity, now: float) -> list[Run]:
    """Return the runs without a sign of progress for their model's `quiet_seconds`, with the GPU idle all
    that time.

    A slow run is not dead, and a busy GPU may work for this run."""
    if seen.idle_since is None:
        return []
    found = []
    for run in runs:
        quiet = models[run.order.model].quiet_seconds if run.order.model in models else None
        if quiet is not None and now - run.last_sign >= quiet and now - seen.idle_since >= quiet:
            found.append(run)
    return found


def unhealthy_reason(reading: GpuReading | None, error: str, ecc_at_start: int | None) -> str:
    """Return why the GPU may take no runs; empty: it may. ecc_at_start: ECC errors at the first reading."""
    if reading is None:
        return f"the GPU can't be read: {error}"
    if ecc_at_start is not None and (reading.ecc_errors or 0) > ecc_at_start:
        return f"{reading.ecc_errors - ecc_at_start} uncorrected ECC errors" if reading.ecc_errors else ""
    return describe_fatal_xids(reading.xids)


class Watchdog:
    """Detects hung runs and a faulty GPU; `step` is called every second.

    read: reads the GPU; None without one: then CPU use of the process shows whether it works. cpu: returns
    that in percent of a core; None: unknown. log_event: receives (event, fields) for the log."""

    def __init__(
        self,
        gpu: LocalGpu,
        read: Callable[[], GpuReading] | None,
        *,
        cpu: Callable[[], float | None] = lambda: None,
        log_event: Callable[..., None] = lambda event, **fields: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._gpu, self._read, self._cpu, self._log_event, self._clock = gpu, read, cpu, log_event, clock
        self._seen = Activity()
        self._read_at = self._kernel_at = -1e9
        self._ecc: int | None = None
        self._xids: Mapping[int, int] = {}
        self._warned_no_utilisation = False

    def step(self) -> None:
        """Read the GPU if it is due, and kill hung runs."""
        now = self._clock()
        if now - self._read_at >= READ_SECONDS:
            self._read_at = now
            if self._read is None:
                self._seen = observe(self._seen, self._cpu(), now)
            else:
                self._examine(self._read, now)
        for run in hung_runs(self._gpu.runs(), self._gpu.models, self._seen, now):
            quiet = self._gpu.models[run.order.model].quiet_seconds
            where = "on an idle GPU" if self._read else "and its process used no CPU"
            error = RunTimedOut(f"No progress for {quiet:.0f} s {where}: it was killed.")
            error.suspect, error.process_died = False, True
            self._gpu.stop_run(run.order.attempt, why=error)

    def _examine(self, read: Callable[[], GpuReading], now: float) -> None:
        try:
            reading = read()
        except OSError as failure:
            self._gpu.sick = unhealthy_reason(None, str(failure), self._ecc)
            self._seen = Activity()
            self._kernel_at = -1e9  # a kernel would hang with the driver; try one as soon as it answers
            return
        self._seen = observe(self._seen, reading.utilisation, now)
        if self._ecc is None:
            self._ecc = reading.ecc_errors or 0
        self._note_xids(reading.xids)
        self._warn_without_utilisation(reading.utilisation)
        # set before a kernel is tried, which may take long
        self._gpu.sick = unhealthy_reason(reading, "", self._ecc) or self._gpu.kernel_error
        due = now - self._kernel_at >= KERNEL_SECONDS or self._gpu.kernel_error
        if due and self._gpu.probe() is not None:  # None: not tried
            self._kernel_at = now
        self._gpu.sick = unhealthy_reason(reading, "", self._ecc) or self._gpu.kernel_error

    def _note_xids(self, xids: Mapping[int, int]) -> None:
        """Log new Xids; after any of them a small kernel shows whether the GPU still computes."""
        for xid, times in xids.items():
            if times > self._xids.get(xid, 0):
                self._log_event("gpu_xid", xid=xid, times=times, sick=bool(describe_fatal_xids({xid: times})))
                self._kernel_at = -1e9
        self._xids = xids

    def _warn_without_utilisation(self, utilisation: float | None) -> None:
        """Warn once: without utilisation a hang looks like work, so no run is killed."""
        watched = [name for name, model in self._gpu.models.items() if model.quiet_seconds is not None]
        if utilisation is None and watched and not self._warned_no_utilisation:
            self._warned_no_utilisation = True
            self._log_event(
                "hang_detection_unavailable", why="this GPU reports no utilisation", models=watched
            )
