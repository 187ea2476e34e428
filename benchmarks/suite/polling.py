"""200 async jobs, polled by one worker process: its share of a core while no job starts or ends."""

from __future__ import annotations

import time
from typing import Any

from verification.proving.terminal import say

from .cpu import cpu_seconds
from .suite import Suite

JOBS, SECONDS, POLL_SECONDS = 200, 15.0, 2.0
_SETTLE_SECONDS = 3.0
_WAIT_SECONDS = 60.0


def measure(suite: Suite) -> dict[str, Any]:
    """Run the benchmark with a model's default poll interval."""
    count = suite.options.jobs or JOBS
    seconds = suite.options.seconds or SECONDS
    gpu = suite.env.gpu
    with suite.dispatcher(DISPATCHER_WORKER_THREADS=str(count)) as ours:
        ours.register(
            "bench", count, path="/async", model_type="async", poll_endpoint_template="/status/{id}",
            id_field="job_id", poll_interval=POLL_SECONDS, cancel_endpoint_template="/cancel/{id}",
        )  # fmt: skip
        ours.model = "bench"
        gpu.begin(count)
        ours.fill([(number, 1.0) for number in range(count)])
        gpu.wait_for("held", count, _WAIT_SECONDS, ours.check)
        time.sleep(_SETTLE_SECONDS)
        worker = [ours.system.pid("gpu_worker")]
        before, polls, began = cpu_seconds(worker), gpu.standing()["polls"], time.monotonic()
        time.sleep(seconds)
        took = time.monotonic() - began
        share = (cpu_seconds(worker) - before) / took
        polled = (gpu.standing()["polls"] - polls) / took
        gpu.open_gate()
        gpu.wait_for("ended", count, _WAIT_SECONDS, ours.check)
    found = {
        "jobs": count,
        "poll_interval_seconds": POLL_SECONDS,
        "core_share": round(share, 4),
        "polls_per_second": round(polled, 1),
        "cpu_ms_per_poll": round(share * 1000 / polled, 3) if polled else None,
    }
    say(f"{count} jobs polled {polled:.0f} times a second by {share:.1%} of a core")
    return found
