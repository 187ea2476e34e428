"""A rolling upgrade to processes of another key layout, and back: both versions run side by side for a
while."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from jobs.operations import index_switch
from jobs.ports import Ports
from verification.simulation.operators import Operators
from verification.simulation.roles import SweepsRole, WebRole, WorkerRole

LONG_MODELS = ("zimg", "ltx2")
_Role = WorkerRole | SweepsRole | WebRole
SWITCH_SECONDS = 180.0
"""For the slowest switch: processes that died count as living for a while, and runs end first."""


class VersionFaults(Operators):
    """Upgrades as faults."""

    def layouts_change(self) -> None:
        """Replace each process by one of the other layout, while long jobs run.

        The index is switched automatically once no old process uses it, or an operator has begun that while
        old workers still ran jobs. One upgrade at a time."""
        world, versions, chance = self._world, self._world.versions, self._chance
        if versions.is_changing:
            return
        versions.is_changing = True
        self._await_index()
        versions.change()
        world.send_jobs(
            chance.choice(world.tenants), chance.choice(LONG_MODELS), 3, chance.uniform(20.0, 40.0)
        )
        workers: list[_Role] = [*world.workers]
        others: list[_Role] = [*world.sweepers, world.web]
        if is_begun_early := chance.random() < 0.6:
            self._replace_all([*others, workers.pop()])
            for fleet in world.fleets:
                world.operate(partial(_begin_switch, fleet, versions.newest))
            self._sleep(0.0, 30.0)
        self._replace_all(workers if is_begun_early else [*others, *workers])
        for advancer in world.advancers.alive():
            world.scheduler.kill(advancer.process)
            world.advancers.start_successor()
        self._await_switch()
        versions.is_changing = False

    def _replace_all(self, olds: Sequence[_Role]) -> None:
        for old in self._chance.sample(olds, len(olds)):
            if old.process.alive:  # a dead one is followed by a process of the newest layout anyway
                self._replace(old)
            self._sleep(0.1, 8.0)

    def _replace(self, old: _Role) -> None:
        """The new process starts before or after the end of the old one, which signs off or dies."""
        world = self._world
        start: Callable[[], None] = world.start_web
        end: Callable[[], None] = partial(world.scheduler.kill, old.process)
        if isinstance(old, SweepsRole):
            start = world.start_sweeper
        elif isinstance(old, WorkerRole):
            start = world.start_worker
            end = old.stop if self._chance.random() < 0.8 else end
        steps = [start, end]
        self._chance.shuffle(steps)
        for step in steps:
            step()
            self._sleep(0.0, 3.0)

    def _await_switch(self) -> None:
        world, versions = self._world, self._world.versions
        until = world.scheduler.now + SWITCH_SECONDS
        while world.scheduler.now < until and not all(
            versions.in_use(fleet) == versions.newest and versions.is_whole(fleet) for fleet in world.fleets
        ):
            world.scheduler.sleep(1.0)


def _begin_switch(fleet: str, layout: int, _: Ports) -> None:
    index_switch.begin_switch(fleet, layout)
