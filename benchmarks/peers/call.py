"""The task of every peer: a POST to the simulated GPU server. Standard library only.

On a persistent connection per thread, which users of each of these libraries can have."""

from __future__ import annotations

import http.client
import json
import os
import socket
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

GPU = os.environ.get("BENCH_GPU", "http://127.0.0.1:9")
SLOTS = int(os.environ.get("BENCH_SLOTS", "8"))
REDIS_SOCKET = os.environ.get("BENCH_REDIS_SOCKET", "")
REDIS_URL = f"unix://{REDIS_SOCKET}?db=0"
DATABASE = os.environ.get("BENCH_DATABASE", "")

_mine = threading.local()


@dataclass(frozen=True)
class Graphs:
    """The orders of ``fill FILE`` for a peer with workflows. chains: their jobs; pause: seconds after each.
    map: the jobs of a fan-out, join: that of its join. seconds: how long each runs."""

    chains: list[list[int]]
    map: list[int]
    join: int
    pause: float
    seconds: float


def call(job: int, seconds: float) -> None:
    """Run one job. Raises the errors of http.client, and RuntimeError for an answer that is no success."""
    connection = getattr(_mine, "connection", None)
    if connection is None:
        connection = _mine.connection = http.client.HTTPConnection(urlsplit(GPU).netloc, timeout=120)
        connection.connect()
        connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.request(
        "POST", "/run", json.dumps({"job": job, "seconds": seconds}), {"Content-Type": "application/json"}
    )
    answer = connection.getresponse()
    body = json.loads(answer.read())
    if answer.status != 200 or body["status"] != "success":
        raise RuntimeError(f"the GPU server answered {answer.status}")


async def call_async(session: Any, job: int, seconds: float) -> None:
    """Run one job. session: aiohttp's. Raises its errors, and RuntimeError for an answer that is no
    success."""
    async with session.post(f"{GPU}/run", json={"job": job, "seconds": seconds}) as answer:
        body = await answer.json()
        if answer.status != 200 or body["status"] != "success":
            raise RuntimeError(f"the GPU server answered {answer.status}")


def run_instead(*command: str) -> None:
    """Replace this process by the peer's own command, in the environment of this script."""
    program = Path(sys.executable).parent / command[0]
    os.execv(program, [str(program), *command[1:]])


def read_graphs() -> Graphs:
    return Graphs(**json.loads(Path(sys.argv[2]).read_text()))


def read_jobs() -> list[tuple[int, float]]:
    """Return the jobs of ``fill FILE``."""
    return [(int(job), float(seconds)) for job, seconds in json.loads(Path(sys.argv[2]).read_text())]
