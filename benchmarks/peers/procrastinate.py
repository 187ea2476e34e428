"""Procrastinate on PostgreSQL: an async worker with as many jobs at once as there are slots."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import aiohttp
import procrastinate

from benchmarks.peers.call import DATABASE, SLOTS, call_async, read_jobs

app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=DATABASE))
_sessions: list[Any] = []


@app.task(name="run")
async def run(job: int, seconds: float) -> None:
    await call_async(_sessions[0], job, seconds)


async def main(verb: str) -> None:
    async with app.open_async():
        if verb == "prepare":
            await app.schema_manager.apply_schema_async()
        elif verb == "fill":
            jobs = [{"job": number, "seconds": length} for number, length in read_jobs()]
            for at in range(0, len(jobs), 500):
                await run.batch_defer_async(*jobs[at : at + 500])
        else:
            async with aiohttp.ClientSession() as session:
                _sessions.append(session)
                await app.run_worker_async(concurrency=SLOTS)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
