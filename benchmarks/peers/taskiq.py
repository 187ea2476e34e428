"""Taskiq on a Redis list: one process, one event loop, as many tasks at once as there are slots."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import aiohttp
from taskiq import TaskiqEvents, TaskiqState
from taskiq_redis import ListQueueBroker

from benchmarks.peers.call import REDIS_URL, SLOTS, call_async, read_jobs, run_instead

broker = ListQueueBroker(REDIS_URL, queue_name="jobs")
_sessions: list[Any] = []


@broker.on_event(TaskiqEvents.WORKER_STARTUP)
async def open_session(state: TaskiqState) -> None:
    _sessions.append(aiohttp.ClientSession())


@broker.task(task_name="run")
async def run(job: int, seconds: float) -> None:
    await call_async(_sessions[0], job, seconds)


async def fill() -> None:
    await broker.startup()
    for number, length in read_jobs():
        await run.kiq(number, length)
    await broker.shutdown()


if __name__ == "__main__":
    if sys.argv[1] == "fill":
        asyncio.run(fill())
    else:
        run_instead(
            "taskiq", "worker", "benchmarks.peers.taskiq:broker", "--workers", "1",
            "--max-async-tasks", str(SLOTS), "--log-level", "WARNING",
        )  # fmt: skip
