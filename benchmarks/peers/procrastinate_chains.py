"""Chains of Procrastinate: it has no workflows, so a task defers the next one when it has run. It has no join
either: the children of a map count down in a row of a table of ours, and the last one defers the join."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import aiohttp
import procrastinate

from benchmarks.peers.call import DATABASE, SLOTS, call_async, read_graphs

connector = procrastinate.PsycopgConnector(conninfo=DATABASE)
app = procrastinate.App(connector=connector)
_sessions: list[Any] = []
_COUNT_DOWN = "UPDATE bench_join SET rest = rest - 1 WHERE id = 1 RETURNING rest"


@app.task(name="step")
async def step(jobs: list[int], seconds: float) -> None:
    await call_async(_sessions[0], jobs[0], seconds)
    if jobs[1:]:
        await step.defer_async(jobs=jobs[1:], seconds=seconds)


@app.task(name="child")
async def child(job: int, join: int, seconds: float) -> None:
    await call_async(_sessions[0], job, seconds)
    row = await connector.execute_query_one_async(_COUNT_DOWN)
    if row["rest"] == 0:
        await step.defer_async(jobs=[join], seconds=seconds)


async def fill() -> None:
    graphs = read_graphs()
    if graphs.pause:
        for jobs in graphs.chains:
            await step.defer_async(jobs=jobs, seconds=graphs.seconds)
            await asyncio.sleep(graphs.pause)
    elif graphs.chains:
        await step.batch_defer_async(*({"jobs": jobs, "seconds": graphs.seconds} for jobs in graphs.chains))
    if graphs.map:
        await connector.execute_query_async("DELETE FROM bench_join")
        await connector.execute_query_async(f"INSERT INTO bench_join VALUES (1, {len(graphs.map)})")
        children = [{"job": job, "join": graphs.join, "seconds": graphs.seconds} for job in graphs.map]
        for at in range(0, len(children), 500):
            await child.batch_defer_async(*children[at : at + 500])


async def main(verb: str) -> None:
    async with app.open_async():
        if verb == "prepare":
            await app.schema_manager.apply_schema_async()
            await connector.execute_query_async("CREATE TABLE bench_join (id int primary key, rest int)")
        elif verb == "fill":
            await fill()
        else:
            async with aiohttp.ClientSession() as session:
                _sessions.append(session)
                await app.run_worker_async(concurrency=SLOTS)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
