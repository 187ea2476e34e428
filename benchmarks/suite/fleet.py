"""A fleet of 1,000 slots with jobs of 20 s, run by two worker processes: utilisation and CPU."""

from __future__ import annotations

import random
from typing import Any

from verification.proving.terminal import say

from .suite import Suite
from .utilisation import run_jobs

SERVERS, SLOTS_PER_SERVER, JOB_SECONDS = 10, 100, 20.0
SLOTS = SERVERS * SLOTS_PER_SERVER
SECONDS = 80.0


def measure(suite: Suite) -> dict[str, Any]:
    """Run the benchmark. --seconds: of the whole, at least 40.

    The first jobs are of every length up to the full one, so that a slot becomes free every 20 ms and not a
    thousand at once."""
    seconds = suite.options.seconds or SECONDS
    count = max(2 * SLOTS, suite.options.jobs or int(seconds * SLOTS / JOB_SECONDS))
    chance = random.Random(1)
    jobs = [
        (number, chance.uniform(0.0, JOB_SECONDS) if number < SLOTS else JOB_SECONDS)
        for number in range(count)
    ]
    threads = str(SLOTS // 2)
    with suite.dispatcher(DISPATCHER_WORKER_THREADS=threads) as ours:
        for number in range(SERVERS):
            ours.register("bench", SLOTS_PER_SERVER, server=f"bench-{number}")
        ours.model = "bench"
        worker = ours.start_worker("second", {"DISPATCHER_WORKER_THREADS": threads})
        try:
            found = run_jobs(suite.env.gpu, ours, jobs, SLOTS, also=[worker.pid])
        finally:
            worker.stop(20.0)
    say(f"{SLOTS} slots: utilisation {found['utilisation']:.4f}, {found['cores']} cores")
    return {"slots": SLOTS, "workers": 2, "job_seconds": JOB_SECONDS, **found}
