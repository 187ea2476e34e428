"""Celery on Redis, following its optimizing guide for many short tasks that wait for the network: the threads
pool, no results, no gossip."""

from __future__ import annotations

import sys

from celery import Celery

from benchmarks.peers.call import REDIS_SOCKET, SLOTS, call, read_jobs, run_instead

app = Celery("bench", broker=f"redis+socket://{REDIS_SOCKET}?virtual_host=0")
app.conf.update(
    task_ignore_result=True,
    worker_enable_remote_control=False,
    worker_send_task_events=False,
    broker_connection_retry_on_startup=True,
)


@app.task(name="run")
def run(job: int, seconds: float) -> None:
    call(job, seconds)


if __name__ == "__main__":
    if sys.argv[1] == "fill":
        from benchmarks.peers.celery import run as task

        with task.app.producer_or_acquire() as producer:
            for number, length in read_jobs():
                task.apply_async((number, length), producer=producer)
    else:
        run_instead(
            "celery", "-A", "benchmarks.peers.celery", "worker", "--pool", "threads",
            "--concurrency", str(SLOTS), "--without-gossip", "--without-mingle", "--without-heartbeat",
            "--loglevel", "warning",
        )  # fmt: skip
