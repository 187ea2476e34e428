"""The first layer of a big fleet: the Lua scripts alone, called by one client, under virtual time."""

from __future__ import annotations

import itertools
import time
from typing import Any

from benchmarks.big_fleet_load import FLOOD, Load, Sender
from benchmarks.big_fleet_meters import MeteredLeases, RedisMeter, cpu_seconds_of
from benchmarks.virtual_fleet import VirtualFleet, VirtualJob
from gpus.protocol import ServerSpec, TenantSpec

PUSH = 500


def run_scripts(load: Load, client: Any, pid: int) -> dict[str, Any]:
    """Run the same load as with the services, without their cost; return the real time.

    The next job is claimed with a release, as workers do for jobs of less than a second. pid: of the Valkey.
    """
    size = load.size
    swaps = 0

    def cost(job: VirtualJob, warm: str | None) -> float:
        nonlocal swaps
        swaps += warm != job.model
        return job.seconds + (size.swap_seconds if warm != job.model else 0.0)

    def submit(sender: Sender, count: int) -> None:
        jobs = []
        for _ in range(count):
            asked = load.job(sender)
            jobs.append(fleet.job(sender.name, asked.seconds, model=asked.model, priority=asked.priority))
        fleet.submit_all(jobs)

    def fill() -> None:
        while (missing := size.waiting - sum(fleet.waiting.values())) > 0:
            submit(next(floods), min(PUSH, missing))

    def top_up() -> None:
        fill()
        fleet.after(1.0, top_up)

    def arrive() -> None:
        following = load.next_arrival()
        if following is not None:
            seconds, sender = following
            fleet.after(seconds, lambda: submit_next(sender))

    def submit_next(sender: Sender) -> None:
        submit(sender, 1)
        arrive()

    servers = [
        ServerSpec(name, f"pool-{pool}", slots, size.models_of(pool)) for name, slots, pool in size.servers()
    ]
    fleet = VirtualFleet(
        client, "scripts", servers, cost=cost, pool_of=size.pool_of, make_leases=MeteredLeases
    )
    leases: Any = fleet.leases
    meter = RedisMeter(client)
    floods = itertools.cycle(one for one in load.senders if one.kind == FLOOD)
    fleet.tenants(
        [TenantSpec(one.name, 1.0, "urgent" if one.is_urgent else "normal") for one in load.senders]
    )
    before = meter.read()["bytes"]
    began = time.perf_counter()
    fill()
    filled = time.perf_counter() - began
    per_ticket = (meter.read()["bytes"] - before) / max(1, size.waiting)
    fleet.open()
    arrive()
    top_up()
    fleet.run(size.warm_up_seconds)
    meter.reset()
    leases.reset()
    dispatched, cpu, began = fleet.dispatches, cpu_seconds_of(pid), time.perf_counter()
    fleet.run(size.seconds)
    took = time.perf_counter() - began
    jobs = fleet.dispatches - dispatched
    seen = meter.read()
    return {
        "jobs": jobs,
        "jobs_per_second": jobs / took,
        "push_per_second": size.waiting / filled if filled else 0.0,
        "script_calls_per_job": seen["scripts"] / jobs,
        "commands_per_job": seen["commands"] / jobs,
        "redis_us_per_job": seen["script_us"] / jobs,
        "redis_cpu_us_per_job": (cpu_seconds_of(pid) - cpu) * 1e6 / jobs,
        "bytes_per_ticket": per_ticket,
        "script_costs": script_costs([leases], jobs),
    }


def script_costs(fleets: list[MeteredLeases], jobs: int) -> dict[str, dict[str, float]]:
    """Return calls per job, and Redis' µs per timed call, by script."""
    calls: dict[str, int] = {}
    timed: dict[str, tuple[int, int]] = {}
    for leases in fleets:
        for name, count in leases.calls.items():
            calls[name] = calls.get(name, 0) + count
        for name, (count, spent) in leases.sampled.items():
            before = timed.get(name, (0, 0))
            timed[name] = before[0] + count, before[1] + spent
    return {
        name: {
            "calls_per_job": count / jobs,
            "us": timed[name][1] / timed[name][0] if name in timed else float("nan"),
        }
        for name, count in sorted(calls.items(), key=lambda item: -item[1])
    }
