"""Clocks that are wrong, and a sweeper that seldom looks."""

from __future__ import annotations

from dispatcher_project.simulation.operators import Operators
from dispatcher_project.simulation.world import BEAT_SECONDS

_FAR_SECONDS = (-3600.0, -120.0, 120.0, 3600.0)


class ClockFaults(Operators):
    def redis_clock_steps(self) -> None:
        """Back or ahead; later it is set right."""
        redis = self._world.redis
        redis.offset_seconds += self._chance.choice([-300.0, -60.0, -20.0, 60.0, 300.0])
        self._sleep(20.0, 60.0)
        redis.offset_seconds = 0.0

    def redis_fails_over_to_another_clock(self) -> None:
        """The replica's host is behind or ahead; later it is set right."""
        world = self._world
        world.redis.save()
        self._sleep(0.05, 6.0)
        world.redis.offset_seconds += self._chance.choice([-120.0, -30.0, 120.0])
        world.redis.fail_over()
        self._sleep(20.0, 60.0)
        world.redis.offset_seconds = 0.0

    def clock_steps(self) -> None:
        """Of the host of one process; whoever follows it there has a right one."""
        world = self._world
        process = self._chance.choice([process for process in world.processes() if process.alive])
        process.skew_seconds = self._chance.choice(_FAR_SECONDS)
        self._sleep(20.0, 60.0)
        process.skew_seconds = 0.0

    def slow_sweeper(self) -> None:
        """It looks seldom, and goes on so for a while after everything else is mended."""
        world = self._world
        world.beat_seconds = self._chance.uniform(2.0, 14.0)
        self._sleep(40.0, 80.0)
        world.beat_seconds = BEAT_SECONDS
