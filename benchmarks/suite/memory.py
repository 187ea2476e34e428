"""Memory of a GPU worker while it runs many short jobs on 64 slots, with as many threads."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from statistics import median
from typing import Any

from verification.proving.memory import resident_bytes
from verification.proving.terminal import say

from .gpu import NotDone
from .suite import Suite

SLOTS, JOB_SECONDS, JOBS = 64, 0.02, 5_000
_AHEAD = 2_000
"""Most jobs that wait: the queue is not measured here."""
_PORTION = 500
_WAIT_SECONDS = 60.0
_MEGABYTE = 1024 * 1024
FLAT_MB, FLAT_SHARE = 4.0, 0.05

Sample = tuple[int, float]
"""Jobs done, megabytes."""


def measure(suite: Suite) -> dict[str, Any]:
    """Run the benchmark. --jobs 100000 for as many as the goal requires."""
    count = suite.options.jobs or JOBS
    gpu = suite.env.gpu
    samples: list[Sample] = []
    with suite.dispatcher(SLOTS) as ours:
        pid = ours.system.pid("gpu_worker")
        idle = resident_bytes(pid) / _MEGABYTE
        gpu.begin(SLOTS, gate=False)
        given, best, until = 0, 0, math.inf
        while (done := gpu.standing()["ended"]) < count:
            ours.check()
            samples.append((done, resident_bytes(pid) / _MEGABYTE))
            if given < count and given - done < _AHEAD:
                portion = min(_PORTION, count - given)
                ours.fill([(given + place, JOB_SECONDS) for place in range(portion)])
                given += portion
            if done > best or until == math.inf:
                best, until = done, time.monotonic() + _WAIT_SECONDS
            if time.monotonic() > until:
                raise NotDone(f"{done} of {count} jobs, and no more in {_WAIT_SECONDS:.0f} s")
            time.sleep(0.1)
        samples.append((done, resident_bytes(pid) / _MEGABYTE))
        runs, refused, _ = gpu.log()
        others = {name: round(resident_bytes(one) / _MEGABYTE, 1) for name, one in ours.system.pids().items()}
    found = {
        "threads": SLOTS,
        "idle_mb": round(idle, 1),
        **growth(samples),
        "all_processes_mb": others,
        "samples": [(done, round(size, 1)) for done, size in samples[:: max(1, len(samples) // 100)]],
        "wrong": [] if len({run.job for run in runs}) == len(runs) and not refused else ["jobs ran twice"],
    }
    say(
        f"worker {found['most_mb']} MB at most, {found['first_mb']} → {found['last_mb']} MB over {count} jobs"
    )
    return found


def growth(samples: Sequence[Sample]) -> dict[str, Any]:
    """Compare the second fifth of the jobs with the last one; the first one is the warm-up.

    flat: at most 4 MB or a twentieth larger. Raises ValueError for too few samples."""
    total = samples[-1][0] if samples else 0

    def fifth(number: int) -> list[float]:
        return [size for done, size in samples if total * number / 5 <= done <= total * (number + 1) / 5]

    if total == 0 or not fifth(1) or not fifth(4):
        raise ValueError("too few samples of the worker's memory: take more jobs")
    first, last = median(fifth(1)), median(fifth(4))
    return {
        "jobs": total,
        "first_mb": round(first, 1),
        "last_mb": round(last, 1),
        "most_mb": round(max(size for _, size in samples), 1),
        "flat": last - first <= max(FLAT_MB, FLAT_SHARE * first),
    }
