"""Huey on Redis: threads, no results; its consumer blocks on the list."""

from __future__ import annotations

import sys

from huey import RedisHuey

from benchmarks.peers.call import REDIS_URL, SLOTS, call, read_jobs, run_instead

huey = RedisHuey("bench", url=REDIS_URL, results=False, blocking=True)


@huey.task(name="run")
def run(job: int, seconds: float) -> None:
    call(job, seconds)


if __name__ == "__main__":
    if sys.argv[1] == "fill":
        from benchmarks.peers.huey import run as task

        for number, length in read_jobs():
            task(number, length)
    else:
        run_instead(
            "huey_consumer", "benchmarks.peers.huey.huey", "-w", str(SLOTS), "-k", "thread", "--no-periodic",
            "--quiet",
        )  # fmt: skip
