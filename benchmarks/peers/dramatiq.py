"""Dramatiq on Redis: a process per core, its command's default, and threads for all slots."""

from __future__ import annotations

import sys

import dramatiq
from dramatiq.brokers.redis import RedisBroker

from benchmarks.peers.call import REDIS_URL, SLOTS, call, read_jobs, run_instead

PROCESSES = 2 if SLOTS % 2 == 0 else 1

dramatiq.set_broker(RedisBroker(url=REDIS_URL))


@dramatiq.actor(max_retries=0, queue_name="jobs", actor_name="run")
def run(job: int, seconds: float) -> None:
    call(job, seconds)


if __name__ == "__main__":
    if sys.argv[1] == "fill":
        for number, length in read_jobs():
            run.send(number, length)
    else:
        run_instead(
            "dramatiq", "benchmarks.peers.dramatiq", "--processes", str(PROCESSES),
            "--threads", str(SLOTS // PROCESSES), "--path", ".",
        )  # fmt: skip
