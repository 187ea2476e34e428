"""Celery's canvas on Redis: chains, and a group with a chord's join, which needs the results."""

from __future__ import annotations

import sys
import time

from celery import Celery, chain, chord, group

from benchmarks.peers.call import REDIS_SOCKET, SLOTS, call, read_graphs, run_instead

_URL = f"redis+socket://{REDIS_SOCKET}?virtual_host="
app = Celery("bench", broker=f"{_URL}0", backend=f"{_URL}1")
app.conf.update(
    worker_enable_remote_control=False,
    worker_send_task_events=False,
    broker_connection_retry_on_startup=True,
)


@app.task(name="run")
def run(job: int, seconds: float) -> int:
    call(job, seconds)
    return job


def main() -> None:
    from benchmarks.peers.celery_canvas import run as task

    graphs = read_graphs()
    for jobs in graphs.chains:
        chain(*(task.si(job, graphs.seconds) for job in jobs)).apply_async()
        time.sleep(graphs.pause)
    if graphs.map:
        header = group(task.si(job, graphs.seconds) for job in graphs.map)
        chord(header, task.si(graphs.join, graphs.seconds)).apply_async()


if __name__ == "__main__":
    if sys.argv[1] == "fill":
        main()
    else:
        run_instead(
            "celery", "-A", "benchmarks.peers.celery_canvas", "worker", "--pool", "threads",
            "--concurrency", str(SLOTS), "--without-gossip", "--without-mingle", "--without-heartbeat",
            "--loglevel", "warning",
        )  # fmt: skip
