"""Latency on an idle fleet: from acceptance to the start of a run, and from its end to the callback.

One job at a time, each after the callback of the one before and a pause of random length. All clocks are this
machine's: accepted = the client has its 202; running = the GPU server has the request; finished = the GPU
server's run is over; called back = the callback has arrived.
"""

from __future__ import annotations

import http.client
import json
import random
import socket
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from verification.proving.terminal import say

from .contenders import Dispatcher
from .figures import percentiles
from .slot_log import Run
from .suite import Suite

SLOTS, JOB_SECONDS, JOBS, WARM_UP_JOBS = 8, 0.05, 200, 20
_PAUSE_SECONDS = (0.02, 0.12)
_WAIT_SECONDS = 30.0
_KEPT_SECONDS = 2.0


def measure(suite: Suite) -> dict[str, Any]:
    """Run the benchmark."""
    count = WARM_UP_JOBS + (suite.options.jobs or JOBS)
    gpu = suite.env.gpu
    chance = random.Random(1)
    submitted: dict[str, tuple[float, float]] = {}
    with suite.dispatcher(SLOTS) as ours:
        ours.warm_up()
        gpu.begin(SLOTS, gate=False)
        client = _Client(ours, f"{gpu.url}/callback")
        for number in range(count):
            sent = time.monotonic()
            job = client.submit(number)
            submitted[job] = sent, time.monotonic()
            gpu.wait_for("callbacks", number + 1, _WAIT_SECONDS, ours.check)
            time.sleep(chance.uniform(*_PAUSE_SECONDS))
        client.close()
        runs, _, callbacks = gpu.log()
    warm = dict(list(submitted.items())[WARM_UP_JOBS:])
    found = figures(warm, runs, dict(callbacks))
    say(", ".join(f"{name} p50 {one['p50']} p99 {one['p99']} ms" for name, one in found["ms"].items()))
    return found


def figures(
    submitted: Mapping[str, tuple[float, float]], runs: list[Run], callbacks: Mapping[str, float]
) -> dict[str, Any]:
    """Return the latencies. submitted: by job id, when it was sent and when the answer arrived; monotonic
    seconds.

    A job that runs before its client has the answer counts as negative."""
    by_job: dict[str, list[Run]] = {}
    for run in runs:
        by_job.setdefault(run.remote_id, []).append(run)
    wrong = [job for job in submitted if len(by_job.get(job, ())) != 1 or job not in callbacks]
    whole = {job: times for job, times in submitted.items() if job not in wrong}
    spans = {
        "accepted → running": [by_job[job][0].began - accepted for job, (_, accepted) in whole.items()],
        "sent → running": [by_job[job][0].began - sent for job, (sent, _) in whole.items()],
        "finished → called back": [callbacks[job] - by_job[job][0].ended for job in whole],
        "sent → called back": [callbacks[job] - sent for job, (sent, _) in whole.items()],
    }
    return {
        "ms": {name: percentiles(one * 1000 for one in seconds) for name, seconds in spans.items()},
        "jobs": len(whole),
        "job_ms": JOB_SECONDS * 1000,
        "wrong": [f"{len(wrong)} jobs did not run once, or were not called back"] if wrong else [],
    }


class _Client:
    """A persistent connection, reopened if it was idle for so long that the server may have closed it."""

    def __init__(self, ours: Dispatcher, callback_url: str) -> None:
        self._ours, self._callback_url = ours, callback_url
        self._headers = {
            "Authorization": f"Bearer {ours.system.operator_key}",
            "Content-Type": "application/json",
        }
        self._connection = http.client.HTTPConnection(urlsplit(ours.system.url).netloc, timeout=30)
        self._used = 0.0

    def submit(self, number: int) -> str:
        """Submit a job; return its id."""
        if time.monotonic() - self._used > _KEPT_SECONDS:
            self._connection.close()
        self._used = time.monotonic()
        if self._connection.sock is None:
            self._connection.connect()
            open_socket: Any = self._connection.sock
            open_socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        body = {**self._ours.request(number, JOB_SECONDS), "callback_url": self._callback_url}
        self._connection.request("POST", "/api/v1/queue/submit", json.dumps(body), self._headers)
        answer = self._connection.getresponse()
        text = answer.read()
        if answer.status != 202:
            raise ValueError(f"a submit was answered {answer.status}: {text[:200].decode(errors='replace')}")
        return str(json.loads(text)["job_id"])

    def close(self) -> None:
        self._connection.close()
