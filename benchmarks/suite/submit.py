"""Submit throughput and latency: closed loops one by one and 100 at a time, and an open loop on a busy fleet.

Compared in the same run on the same machine: a bare Starlette endpoint that pushes to a Redis list and stores
nothing durable, and a bare Django view that commits one row on the same database behind the same web server
(`deploy/systemd/dispatcher-web.service`).

Closed: 16 connections, each posts again as soon as it was answered; every slot is taken meanwhile and no job
ends, so that only submitting is measured. Open: requests come at random moments, half as many a second as the
closed loop reached, while eight slots run jobs of 100 ms one after the other.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dispatcher_project.supervisor.signs import port_is_open
from verification.proving.children import Child
from verification.proving.terminal import say

from .contenders import DISPATCHER, Dispatcher
from .environment import BenchEnvironment, CannotMeasure, tail_of
from .figures import medians, percentiles, ratio
from .peers import STARLETTE
from .rows import count_jobs
from .suite import Suite
from .web import deployed_command, deployed_unit, serves_with

SLOTS, CONNECTIONS, BATCH_JOBS, JOB_SECONDS = 8, 16, 100, 0.1
SECONDS = 4.0
DEPLOYED = "dispatcher (deploy/)"
STARLETTE_NAME, DJANGO_NAME = "Starlette + Redis", "Django, one row"
_START_SECONDS = 30.0
_WAIT_SECONDS = 60.0
_JSON = {"Content-Type": "application/json"}


@dataclass(frozen=True, slots=True)
class Target:
    """A server to submit to. body: of one job."""

    name: str
    url: str
    body: Mapping[str, Any]
    headers: Mapping[str, str] = field(default_factory=dict)
    batch_url: str = ""
    served_by: str = ""

    def order(self, what: str, seconds: float, *, batch: bool = False, rate: float = 0.0) -> dict[str, Any]:
        """Return the order for the load generator (http_load.py)."""
        body = {"jobs": [self.body] * BATCH_JOBS} if batch else self.body
        return {
            "do": what,
            "url": self.batch_url if batch else self.url,
            "headers": {**_JSON, **self.headers},
            "body": json.dumps(body),
            "connections": CONNECTIONS,
            "seconds": seconds,
            "rate": rate,
        }


def measure(suite: Suite) -> dict[str, Any]:
    """``{"targets": {name: {"served_by", "single", "batch"}}, "open": {name: {…}}, "ratios": {…}}``"""
    seconds = suite.options.seconds or SECONDS
    gpu = suite.env.gpu
    with contextlib.ExitStack() as stack:
        ours = stack.enter_context(suite.dispatcher())
        ours.register("bench", SLOTS, max_run_seconds=7200.0)
        ours.model = "bench"
        targets = list(_targets(suite, ours, stack))
        load = suite.env.children.start(
            "load", sys.executable, "-m", "benchmarks.suite.http_load", talks=True
        )
        stack.callback(load.stop)
        load.receive()
        gpu.begin(SLOTS)
        ours.fill([(number, JOB_SECONDS) for number in range(SLOTS)])
        gpu.wait_for("held", SLOTS, _WAIT_SECONDS, ours.check)
        rounds: dict[tuple[str, str], list[dict[str, Any]]] = {}
        accepted = SLOTS
        for number in range(suite.options.rounds):
            for target in targets:
                for way in ("single", "batch") if target.batch_url else ("single",):
                    one = _closed(load, target, way, seconds)
                    rounds.setdefault((target.name, way), []).append(one)
                    if target.name in (DISPATCHER, DEPLOYED):
                        accepted += one["answered"] * (BATCH_JOBS if way == "batch" else 1)
                    _progress(f"round {number + 1}  {target.name:<20} {way:<7}", one)
        wrong = _wrong(ours, accepted)
        gpu.open_gate()
        opened = {}
        for target in targets:
            if target.name in (DISPATCHER, DEPLOYED):
                capacity = medians(rounds[target.name, "single"])["requests_per_second"]
                opened[target.name] = _open(load, target, capacity / 2, seconds * 2)
                _progress(f"open loop, fleet at work  {target.name:<20}", opened[target.name])
    found: dict[str, Any] = {
        target.name: {
            "served_by": target.served_by,
            **{
                way: {"rounds": rounds[target.name, way], "median": medians(rounds[target.name, way])}
                for way in ("single", "batch")
                if (target.name, way) in rounds
            },
        }
        for target in targets
    }
    return {"targets": found, "open": opened, "ratios": ratios(found), "wrong": wrong}


def ratios(targets: Mapping[str, Any]) -> dict[str, float | None]:
    """Return the ratios, of the deployed server if it differs from `up`'s."""
    ours = targets.get(DEPLOYED) or targets[DISPATCHER]

    def jobs(target: Mapping[str, Any] | None, way: str) -> float | None:
        found: float | None = ((target or {}).get(way) or {}).get("median", {}).get("jobs_per_second")
        return found

    starlette, django = targets.get(STARLETTE_NAME), targets.get(DJANGO_NAME)
    return {
        "batched / Starlette, one by one": ratio(jobs(ours, "batch"), jobs(starlette, "single")),
        "batched / Starlette, batched": ratio(jobs(ours, "batch"), jobs(starlette, "batch")),
        "single / Django, one row": ratio(jobs(ours, "single"), jobs(django, "single")),
    }


def _targets(suite: Suite, ours: Dispatcher, stack: contextlib.ExitStack) -> Iterator[Target]:
    env = suite.env
    mine = {"Authorization": f"Bearer {ours.system.operator_key}"}
    body = ours.request(1, JOB_SECONDS)
    unit = deployed_unit()
    of_up = _command_of(ours.system.pid("web"))

    def dispatcher(name: str, url: str, command: list[str]) -> Target:
        queue = f"{url}/api/v1/queue"
        return Target(name, f"{queue}/submit", body, mine, f"{queue}/submit-batch", serves_with(command))

    yield dispatcher(DISPATCHER, ours.system.url, of_up)
    port = next(env.ports)
    command = deployed_command(unit, port)
    if _without_port(command) != _without_port(of_up):
        stack.callback(_serve(env, "web-deployed", command, port, ours.system.settings()).stop)
        yield dispatcher(DEPLOYED, f"http://127.0.0.1:{port}", command)
    port = next(env.ports)
    command = deployed_command(unit, port, bare=True)
    rows = env.database("bare") or f"sqlite:///{env.new_folder('bare')}/rows.sqlite3"
    stack.callback(_serve(env, "bare-django", command, port, {"DATABASE_URL": rows}).stop)
    yield Target(DJANGO_NAME, f"http://127.0.0.1:{port}/submit", body, served_by=serves_with(command))
    if why := STARLETTE.why_not():
        suite.skip(STARLETTE_NAME, why)
        return
    port = next(env.ports)
    environment = {"BENCH_REDIS_SOCKET": env.valkey("starlette").socket, "BENCH_PORT": str(port)}
    stack.callback(_serve(env, "starlette", STARLETTE.command("work"), port, environment).stop)
    url = f"http://127.0.0.1:{port}/submit"
    yield Target(STARLETTE_NAME, url, body, batch_url=url, served_by="uvicorn")


def _serve(
    env: BenchEnvironment, name: str, command: list[str], port: int, environment: Mapping[str, str]
) -> Child:
    child = env.children.start(name, *command, environment=environment)
    until = time.monotonic() + _START_SECONDS
    while not port_is_open("127.0.0.1", port):
        if not child.is_running() or time.monotonic() > until:
            raise CannotMeasure(f"{name} did not start: {tail_of(env.logs / f'{name}.log')}")
        time.sleep(0.05)
    return child


def _closed(load: Child, target: Target, way: str, seconds: float) -> dict[str, Any]:
    order = target.order("closed", seconds, batch=way == "batch")
    return _figures(load.ask(**order), BATCH_JOBS if way == "batch" else 1)


def _open(load: Child, target: Target, rate: float, seconds: float) -> dict[str, Any]:
    measured = load.ask(**target.order("open", seconds, rate=rate))
    late = percentiles(one * 1000 for one in measured["late"])
    return {"rate": round(rate, 1), **_figures(measured, 1), "late_p99_ms": late["p99"]}


def _figures(measured: Mapping[str, Any], jobs: int) -> dict[str, Any]:
    took = percentiles(one * 1000 for one in measured["took"])
    per_second = len(measured["took"]) / measured["seconds"]
    return {
        "requests_per_second": round(per_second, 1),
        "jobs_per_second": round(per_second * jobs, 1),
        "p50_ms": took["p50"],
        "p99_ms": took["p99"],
        "answered": took["count"],
        "other": measured["other"],
    }


def _wrong(ours: Dispatcher, accepted: int) -> list[str]:
    rows = count_jobs(ours)
    return [] if rows == accepted else [f"{accepted} jobs were accepted, {rows} are in the database"]


def _progress(what: str, one: Mapping[str, Any]) -> None:
    late = f"  sent late: p99 {one['late_p99_ms']} ms" if "late_p99_ms" in one else ""
    other = f"  OTHER ANSWERS: {one['other']}" if one["other"] else ""
    say(
        f"{what}  {one['requests_per_second']:8.1f} requests/s  {one['jobs_per_second']:9.1f} jobs/s  "
        f"p50 {one['p50_ms']} ms  p99 {one['p99_ms']} ms{late}{other}"
    )


def _command_of(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/cmdline").read_bytes().decode().rstrip("\0").split("\0")


def _without_port(command: list[str]) -> list[str]:
    """Return the command without port and Python, to compare servers."""
    kept = list(command[1:])
    for option in ("--port", "--host"):
        if option in kept:
            at = kept.index(option)
            del kept[at : at + 2]
    return kept
