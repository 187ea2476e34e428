"""RQ on Redis: a pool of SimpleWorkers, one per slot, because its usual worker forks for every job."""

from __future__ import annotations

import sys

from benchmarks.peers.call import REDIS_URL, SLOTS, call, read_jobs, run_instead

if __name__ == "__main__":
    if sys.argv[1] == "fill":
        from redis import Redis
        from rq import Queue

        queue = Queue("jobs", connection=Redis.from_url(REDIS_URL))
        prepared = [
            Queue.prepare_data(call, (number, length), result_ttl=0, timeout=600)
            for number, length in read_jobs()
        ]
        queue.enqueue_many(prepared)
    else:
        run_instead(
            "rq", "worker-pool", "jobs", "--url", REDIS_URL, "-n", str(SLOTS),
            "--worker-class", "rq.SimpleWorker", "--path", ".", "--logging-level", "WARNING",
        )  # fmt: skip
