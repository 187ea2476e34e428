"""The processes that advance runs of workflows, and the hints that wake them."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial

from jobs.ports import Ports
from verification.simulation.active_faults import ActiveFaults
from verification.simulation.scheduler import Process, Scheduler
from workflows.execution.advancer import Advancer
from workflows.execution.due_runs import DueRuns

COUNT = 2


class AdvancerRole:
    """A process that advances runs, as the callbacks worker does in production."""

    def __init__(self, scheduler: Scheduler, process: Process, ports: Ports) -> None:
        self.process, self.ports = process, ports
        self._scheduler = scheduler
        self._due_runs = DueRuns(Advancer(ports), threads=2, clock=lambda: scheduler.now)

    def wake(self, followers: Sequence[str]) -> None:
        """Start a fiber that takes one hint."""
        self._scheduler.spawn(self.process, partial(self._wake, followers))

    def _wake(self, followers: Sequence[str]) -> None:
        try:
            self._due_runs.wake([follower.removeprefix("run:") for follower in followers])
        except Exception as error:  # Celery logs it and continues
            self._scheduler.note(self.process.name, f"hint failed: {error}")


class Advancers:
    """The advancers of a world; none without runs. make: returns a new process and its ports. broker: of the
    messages on their way. change_definition: stores another version of workflows."""

    def __init__(
        self,
        scheduler: Scheduler,
        active_faults: ActiveFaults,
        chance: random.Random,
        broker: Process,
        make: Callable[[], tuple[Process, Ports]],
    ) -> None:
        self.roles: list[AdvancerRole] = []
        self.change_definition: Callable[[], None] = lambda: None
        self._scheduler, self._faults, self._chance = scheduler, active_faults, chance
        self._broker, self._make = broker, make

    def start(self) -> None:
        """Start all of them."""
        self.roles = [self._role() for _ in range(COUNT)]

    def start_successor(self) -> None:
        """Start a process in place of a dead one, if there is one."""
        for place, role in enumerate(self.roles):
            if not role.process.alive:
                self.roles[place] = self._role()
                return

    def heal(self) -> None:
        """Start processes in place of all dead ones."""
        for _ in self.roles:
            self.start_successor()

    def alive(self) -> list[AdvancerRole]:
        """Return those that live, also stopped ones."""
        return [role for role in self.roles if role.process.alive]

    def hint(self, followers: Sequence[str]) -> None:
        """Send a hint to one of them, as `Ports.wake_followers` does."""
        if not self.roles:
            return
        self._scheduler.point("broker")
        faults = self._faults
        if faults.broker_down or faults.happens(max(faults.hint_lost, faults.wake_lost)):
            return
        for _ in range(2 if faults.happens(max(faults.hint_doubled, faults.wake_doubled)) else 1):
            self._scheduler.spawn(self._broker, partial(self._deliver, followers))

    def _deliver(self, followers: Sequence[str]) -> None:
        self._scheduler.sleep(self._chance.random() * 0.02)
        if takers := self.alive():
            self._chance.choice(takers).wake(followers)

    def _role(self) -> AdvancerRole:
        process, ports = self._make()
        return AdvancerRole(self._scheduler, process, ports)
