"""A bare endpoint: checks that the body is JSON with a model, pushes it to a Redis list, answers 202.

Accepted jobs are in no database; a list of jobs is pushed in one command."""

from __future__ import annotations

import json
import os
import sys
import uuid

import redis.asyncio
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from benchmarks.peers.call import REDIS_URL, run_instead

client = redis.asyncio.Redis.from_url(REDIS_URL)


async def submit(request: Request) -> JSONResponse:
    body = await request.json()
    jobs = body.get("jobs", [body])
    if not all(isinstance(job.get("model"), str) for job in jobs):
        return JSONResponse({"error": "model is missing"}, 400)
    ids = [uuid.uuid4().hex for _ in jobs]
    await client.rpush("jobs", *(json.dumps({"id": id, **job}) for id, job in zip(ids, jobs, strict=True)))
    return JSONResponse({"ids": ids}, 202)


app = Starlette(routes=[Route("/submit", submit, methods=["POST"])])

if __name__ == "__main__" and sys.argv[1] == "work":
    run_instead(
        "uvicorn", "benchmarks.peers.starlette:app", "--host", "127.0.0.1", 
        "--port", os.environ["BENCH_PORT"], "--no-access-log",
    )  # fmt: skip
