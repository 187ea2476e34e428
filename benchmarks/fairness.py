"""Fairness on a full fleet: the shares of many tenants, through the real scripts, under virtual time.

    python -m benchmarks.fairness            200 slots, 20 tenants, two virtual hours and a half
    python -m benchmarks.fairness --seed 7 --hours 6

Twenty tenants keep more jobs waiting than the fleet can run, of 1 to 600 s and of every kind: always short,
always long, evenly mixed, mostly short, and either one second or ten minutes. The first has five hundred
keys, and all its jobs have the highest priority. No job's length is known before it ran. A twenty-first
tenant sends one job a minute. Exit status 1 if a goal is missed:

- Jain's index of the GPU-seconds for the weight, over the tenants, is 0.95 or more in every window of
  20 x tenants x longest job / slots seconds;
- in no interval [t1, t2] do the weighted services of two backlogged tenants f and g differ by more than the
  bound of start-time fair queueing with D concurrent jobs, SFQ(D):
      | W_f(t1, t2) / w_f  -  W_g(t1, t2) / w_g |  <=  (D + 1) (c_f / w_f + c_g / w_g)
  (W. Jin, J. S. Chase, J. Kaur: Interposed Proportional Sharing for a Storage Service Utility, SIGMETRICS
  2004; on one server, D = 0, it is that of P. Goyal, H. M. Vin, H. Cheng: Start-time Fair Queueing, SIGCOMM
  1996). W: GPU-seconds received, w: the weight, c: the cost of the tenant's most expensive job, D: slots. The
  margin that is printed is the bound less the difference, of the pair and interval with the smallest margin;
- 99 % of the slots' time is used while any job waits;
- the 99th percentile of the light tenant's waits is at most twice the longest job plus its wait alone.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, combinations
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.virtual_fleet import VirtualFleet, VirtualJob
from dispatcher_project.supervisor.embedded import EmbeddedValkey
from gpus.leasing.connect import connect
from gpus.protocol import ServerSpec, TenantSpec

LONGEST = 600.0
STEP = 10.0
FLOOD_KEYS, BACKLOG, LIGHT = 500, 40, "light"
GOALS = {"jain": 0.95, "used": 0.99}

KINDS: tuple[Callable[[random.Random], float], ...] = (
    lambda chance: chance.uniform(1, 600),
    lambda chance: 600.0,
    lambda chance: chance.uniform(2, 10),
    lambda chance: 600.0 ** chance.random(),
    lambda chance: 1.0 if chance.random() < 0.5 else 600.0,
)


@dataclass(frozen=True, slots=True)
class Size:
    """The size of the fleet, and its tenants. weights: by tenant number, repeated."""

    slots: int = 200
    tenants: int = 20
    seconds: float = 9000.0
    seed: int = 1
    weights: tuple[float, ...] = (1.0,)

    @property
    def window(self) -> float:
        return 20 * self.tenants * LONGEST / self.slots


@dataclass(frozen=True, slots=True)
class Pair:
    """Two tenants: the largest difference of their services per weight in any interval, and its bound, in
    GPU-seconds per weight."""

    tenants: tuple[str, str]
    apart: float
    bound: float

    @property
    def margin(self) -> float:
        return self.bound - self.apart

    def __str__(self) -> str:
        return (
            f"{self.margin:,.0f} GPU-s ({' and '.join(self.tenants)}: {self.apart:,.0f} apart, the bound is"
            f" {self.bound:,.0f}: {self.apart / self.bound:.1%} of it)"
        )


@dataclass(frozen=True, slots=True)
class Result:
    """The outcome of a measurement.

    jain: of the worst window. closest: the pair of tenants closest to its bound. used: share of the slots'
    time. waits: of the light tenant, sorted, seconds; alone: its longest wait without others."""

    jain: float
    closest: Pair
    used: float
    waits: tuple[float, ...]
    alone: float
    dispatches: int

    @property
    def p99(self) -> float:
        return self.waits[int(len(self.waits) * 0.99)]

    @property
    def misses(self) -> list[str]:
        """Return the missed goals."""
        return [
            goal
            for goal, reached in {
                "Jain's index": self.jain >= GOALS["jain"],
                "SFQ(D)'s bound": self.closest.margin >= 0,
                "used slots": self.used >= GOALS["used"],
                "the light tenant's wait": self.p99 <= 2 * LONGEST + self.alone,
            }.items()
            if not reached
        ]


def measure(client: object, size: Size) -> Result:
    """Run the fleet for the given time and measure the shares."""
    chance = random.Random(size.seed)
    served: dict[str, list[tuple[float, float]]] = {}
    waits: list[float] = []
    servers = [ServerSpec(f"server-{n}", "bench", 8, ("model",)) for n in range(size.slots // 8)]

    def began(job: VirtualJob) -> None:
        if job.tenant == LIGHT:
            waits.append(job.started_at - job.came_at)

    def ended(job: VirtualJob) -> None:
        served.setdefault(job.tenant, []).append((job.started_at, job.ended_at))
        top_up(job.tenant)

    def top_up(tenant: str) -> None:
        wanted = FLOOD_KEYS if tenant == names[0] else BACKLOG
        if tenant != LIGHT and fleet.waiting.get(tenant, 0) <= wanted // 2:
            kind = KINDS[names.index(tenant) % len(KINDS)]
            missing = wanted - fleet.waiting.get(tenant, 0)
            priority = 1 if tenant == names[0] else 5
            fleet.submit(tenant, [kind(chance) for _ in range(missing)], priority=priority)

    def light() -> None:
        fleet.submit(LIGHT, [30.0])
        fleet.after(60.0, light)

    names = [f"tenant-{n:02}" for n in range(size.tenants)]
    weights = {name: size.weights[n % len(size.weights)] for n, name in enumerate(names)}
    fleet = VirtualFleet(client, "alone", servers, on_start=began, on_end=ended)
    fleet.open()
    fleet.after(0.0, light)
    fleet.run(600.0)
    alone = max(waits)
    waits.clear()
    served.clear()
    fleet = VirtualFleet(client, "fairness", servers, on_start=began, on_end=ended)
    fleet.tenants([TenantSpec(name, weight) for name, weight in weights.items()])
    for name in names:
        top_up(name)
    fleet.open()
    fleet.after(0.0, light)
    fleet.run(size.seconds)
    for job in fleet.jobs.values():
        if job.started_at >= 0:
            served.setdefault(job.tenant, []).append((job.started_at, size.seconds))
    curves = {name: [got / weights[name] for got in service(served[name], size.seconds)] for name in names}
    costs = {name: max(end - start for start, end in served[name]) for name in names}
    used = sum(end - start for runs in served.values() for start, end in runs) / (size.slots * size.seconds)
    return Result(
        jain=worst_window(list(curves.values()), int(size.window / STEP)),
        closest=closest_pair(curves, costs, size.slots, weights),
        used=used,
        waits=tuple(sorted(waits)),
        alone=alone,
        dispatches=fleet.dispatches,
    )


def service(runs: Sequence[tuple[float, float]], seconds: float) -> list[float]:
    """Return the GPU-seconds used up to each step of the clock, from 0."""
    steps = [0.0] * (int(seconds / STEP) + 1)
    for start, end in runs:
        for step in range(int(start / STEP), min(int(end / STEP), len(steps) - 2) + 1):
            steps[step + 1] += max(0.0, min(end, (step + 1) * STEP) - max(start, step * STEP))
    return list(accumulate(steps))


def worst_window(curves: Sequence[Sequence[float]], window: int) -> float:
    """Return Jain's index, the smallest over all windows of so many steps."""
    worst = 1.0
    for start in range(len(curves[0]) - window):
        got = [curve[start + window] - curve[start] for curve in curves]
        worst = min(worst, sum(got) ** 2 / (len(got) * sum(one * one for one in got)))
    return worst


def closest_pair(
    curves: Mapping[str, Sequence[float]],
    costs: Mapping[str, float],
    slots: int,
    weights: Mapping[str, float],
) -> Pair:
    """Return the pair with the smallest margin, over all intervals: an interval's difference is that of the
    differences at its ends.

    costs: of each tenant's most expensive job."""
    pairs = []
    for one, other in combinations(curves, 2):
        apart = [mine - theirs for mine, theirs in zip(curves[one], curves[other], strict=True)]
        bound = (slots + 1) * (costs[one] / weights[one] + costs[other] / weights[other])
        pairs.append(Pair((one, other), max(apart) - min(apart), bound))
    return min(pairs, key=lambda pair: pair.margin)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--hours", type=float, default=2.5)
    arguments = parser.parse_args()
    missed = False
    with tempfile.TemporaryDirectory() as folder, EmbeddedValkey(Path(folder), append_only=False) as server:
        client = connect(server.url)
        for weights in ((1.0,), (1.0, 2.0, 4.0)):
            size = Size(seed=arguments.seed, seconds=arguments.hours * 3600, weights=weights)
            result = measure(client, size)
            print(
                f"weights {weights}: {result.dispatches:,} dispatches · Jain {result.jain:.4f} in the worst"
                f" window of {size.window:.0f} s · SFQ(D): worst margin {result.closest}"
                f" · used {result.used:.2%} · light tenant waits"
                f" p50 {result.waits[len(result.waits) // 2]:.1f} s, p99 {result.p99:.1f} s"
                f" (alone {result.alone:.1f} s) · missed: {', '.join(result.misses) or 'nothing'}",
                flush=True,
            )
            missed = missed or bool(result.misses)
    sys.exit(missed)


if __name__ == "__main__":
    main()
