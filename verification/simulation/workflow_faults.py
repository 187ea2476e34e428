"""Faults of the processes that advance runs, and of the hints that wake them."""

from __future__ import annotations

from verification.simulation.operators import Operators
from verification.simulation.scheduler import Process


class WorkflowFaults(Operators):
    """Without runs in the world they do nothing."""

    def advancer_killed(self) -> None:
        """Kill a process that advances runs, before or after any call of a step."""
        if (process := self._advancer()) is None:
            return
        process.dies_after = self._chance.randint(1, 30)
        until = self._world.scheduler.now + 15.0
        while process.alive and self._world.scheduler.now < until:
            self._world.scheduler.sleep(0.2)
        if process.alive:
            process.dies_after = 0
            return
        self._sleep(0.2, 20.0)
        self._world.advancers.start_successor()

    def advancer_paused(self) -> None:
        """Stop a process that advances runs at any call, while another one or the sweeps go on with them."""
        if (process := self._advancer()) is None:
            return
        process.stops_after = self._chance.randint(1, 30)
        self._sleep(5.0, 40.0)
        process.stops_after = 0
        self._world.scheduler.resume(process)

    def all_advancers_killed(self) -> None:
        """Only the sweeps advance runs."""
        for role in self._world.advancers.alive():
            self._world.scheduler.kill(role.process)
        self._sleep(2.0, 30.0)
        self._world.advancers.heal()

    def hints_lost_and_doubled(self) -> None:
        """Lose half of the hints that wake advancers, and send half of them to both."""
        self._world.active_faults.hint_lost = self._world.active_faults.hint_doubled = 0.5
        self._sleep(5.0, 30.0)
        self._world.active_faults.hint_lost = self._world.active_faults.hint_doubled = 0.0

    def definitions_changed(self) -> None:
        """Store other versions of a tenant's workflows."""
        self._world.advancers.change_definition()

    def _advancer(self) -> Process | None:
        alive = [role.process for role in self._world.advancers.alive()]
        return self._chance.choice(alive) if alive else None
