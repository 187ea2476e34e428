"""One seed from its first step to its verdict."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any
from zoneinfo import ZoneInfo

from foundation.database import statements
from gpus.models import QuarantinedSlot
from jobs.models import Job
from verification.simulation.clients import Clients
from verification.simulation.database import connection
from verification.simulation.deliveries import Deliveries
from verification.simulation.files import Files
from verification.simulation.judge import FINAL, cost, judge, judge_now
from verification.simulation.nemesis import CLOCKS, Nemesis, PlannedFault, make_plan
from verification.simulation.promptness import Promptness
from verification.simulation.quotas import CHECK_SECONDS, Quotas
from verification.simulation.schedules import Schedules
from verification.simulation.size import Size
from verification.simulation.workflow_runs import WorkflowRuns, cost_of
from verification.simulation.world import World
from workflows.schedules.domain import timetable

CHECKS_EVERY_SECONDS = 20.0
DRAIN_SECONDS = 600.0
STEP_SECONDS = 4.0
SETTLE_SECONDS = 20.0
"""After the end of the last job: a lease time and a few ticks, in which all leftovers must vanish."""

_not_over = statements.Read(lambda: Job.objects.exclude(state__in=sorted(FINAL)).values_list("state")[:1])
_in_quarantine = statements.Read(
    lambda: QuarantinedSlot.objects.filter(freed_at=None).order_by().values_list("pk")[:1]
)


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of a seed. broken: violations; empty if good. seconds: virtual time until all was drained;
    took: real time."""

    seed: int
    broken: list[str]
    seconds: float
    took: float
    points: int
    plan: list[PlannedFault] = field(default_factory=list)
    cost: dict[str, int] = field(default_factory=dict)
    history: list[tuple[float, str, str]] = field(default_factory=list)


def simulate(seed: int, client: Any, size: Size) -> Verdict:
    """Play one seed. client: of an empty Valkey."""
    began = time.perf_counter()
    plan = make_plan(seed, size)
    names = {planned.name for planned in plan}
    with statements.use_connection(lambda: connection):  # one thread, one connection: no look-up is needed
        world = World(
            seed,
            client,
            two_fleets="fleet_hangs" in names,
            layouts_change="layouts_change" in names,
            skewed=names.isdisjoint(CLOCKS),
        )
        return _simulate(world, plan, began, size)


def _simulate(world: World, plan: list[PlannedFault], began: float, size: Size) -> Verdict:
    try:
        quotas, clients = Quotas(world, size), Clients(world, size)
        files = Files(world, size, clients)
        runs = WorkflowRuns(world, size)
        schedules = Schedules(world, size)
        Nemesis(world, plan)
        promptness, deliveries = Promptness(world, quotas.holds), Deliveries(world)
        broken: list[str] = []
        scheduler = world.scheduler
        while scheduler.now < size.fault_seconds + CHECKS_EVERY_SECONDS and not broken:
            _play(world, quotas, promptness, deliveries, CHECKS_EVERY_SECONDS)
            broken = judge_now(world, clients) + quotas.broken + promptness.broken + deliveries.broken
        world.heal()
        runs.heal()
        schedules.end()
        scheduler.spawn(world.outside, quotas.lift)
        give_up = scheduler.now + DRAIN_SECONDS
        while (
            not broken
            and scheduler.now < give_up
            and not (schedules.are_over() and _is_drained(world, clients) and runs.is_over())
        ):
            _play(world, quotas, promptness, deliveries, STEP_SECONDS)
            runs.check()
            broken = promptness.broken + deliveries.broken + runs.broken
        drained_at = scheduler.now
        if not broken:
            _play(world, quotas, promptness, deliveries, SETTLE_SECONDS)
            broken = (
                judge(world, clients, plan, runs.job_count() + schedules.job_count())
                + quotas.broken
                + promptness.broken
            )
            names = {planned.name for planned in plan}
            broken += [*runs.judge(), *schedules.judge(clocks_agree=names.isdisjoint(CLOCKS)), *files.judge()]
            broken += deliveries.broken or deliveries.judge(names)
        of_kinds = {"quota_holds": quotas.held} | cost_of(runs) | schedules.cost() | files.cost()
        return Verdict(
            world.seed, broken, drained_at, time.perf_counter() - began, scheduler.points,
            plan, cost(world) | of_kinds,
            list(scheduler.history) if broken or size.keeps_history else [],
        )  # fmt: skip
    finally:
        timetable.find_zone = ZoneInfo
        world.close()


def _play(
    world: World, quotas: Quotas, promptness: Promptness, deliveries: Deliveries, seconds: float
) -> None:
    scheduler, until = world.scheduler, world.scheduler.now + seconds
    while scheduler.now < until and not (promptness.broken or deliveries.broken):
        look_at = min(until, scheduler.now + CHECK_SECONDS)
        while scheduler.now < look_at:
            scheduler.run(min(look_at, scheduler.now + promptness.next_check_seconds))
            promptness.check()
            deliveries.check()
        quotas.check()


def _is_drained(world: World, clients: Clients) -> bool:
    return not (world.lasting or clients.waiting() or _not_over() or _in_quarantine())
