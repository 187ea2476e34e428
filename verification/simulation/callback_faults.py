"""Faults of callbacks: of their process, its clock, and the receivers."""

from __future__ import annotations

from verification.simulation.clock_faults import ClockFaults
from verification.simulation.receivers import Behaviour

DATABASE_AWAY = frozenset({"commit_replies_lost", "commits_fail", "database_down", "database_forgets"})
"""Faults under which callbacks may be late, or sent again."""


class CallbackFaults(ClockFaults):
    """Faults of the callbacks process and of receivers."""

    def callbacks_killed(self) -> None:
        """Kill the process in a step of a delivery: between taking, sending and recording it."""
        world, role = self._world, self._world.callbacks
        until = world.scheduler.now + 30.0
        while role.process.alive and not role.worker.busy() and world.scheduler.now < until:
            world.scheduler.sleep(0.01)
        role.process.dies_after = self._chance.randint(1, 3)
        while role.process.alive and world.scheduler.now < until:
            world.scheduler.sleep(0.2)
        role.process.dies_after = 0
        self._sleep(0.1, 5.0)
        if not world.callbacks.process.alive:
            world.start_callbacks()

    def callbacks_clock_steps(self) -> None:
        """Step the clock of the callbacks process' host, or start the process there while the clock is
        wrong."""
        world = self._world
        with self._one_wrong_clock() as is_mine:
            if is_mine:
                skew = self._chance.choice([-3600.0, -120.0, 120.0, 3600.0])
                if self._chance.random() < 0.3:
                    world.scheduler.kill(world.callbacks.process)
                    world.start_callbacks(skew)
                process = world.callbacks.process
                process.skew_seconds = skew
                self._sleep(20.0, 60.0)
                process.skew_seconds = 0.0

    def receiver_is_sick(self) -> None:
        """One receiver of a tenant fails for a while."""
        receivers, tenant = self._world.receivers, self._chance.choice(self._world.tenants)
        url = self._chance.choice(receivers.urls(tenant))
        receivers.change(
            tenant, url, self._chance.choice([one for one in Behaviour if one is not Behaviour.HEALTHY])
        )
        self._sleep(10.0, 60.0)
        receivers.change(tenant, url, Behaviour.HEALTHY)

    def receivers_hang(self) -> None:
        """All receivers of a tenant hang; all its next jobs have a callback."""
        world = self._world
        tenant = self._chance.choice(world.tenants)
        urls = world.receivers.urls(tenant)
        for url in urls:
            world.receivers.change(tenant, url, Behaviour.HANGS)
        world.request_callbacks(tenant)
        self._sleep(30.0, 60.0)
        for url in urls:
            world.receivers.change(tenant, url, Behaviour.HEALTHY)
