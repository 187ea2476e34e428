"""Wrong clocks, and a sweeper that runs rarely."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from verification.simulation.operators import Operators
from verification.simulation.world import BEAT_SECONDS


class ClockFaults(Operators):
    """One clock is wrong at a time: with two wrong clocks there is no majority."""

    def redis_clock_steps(self) -> None:
        """Redis' clock is behind or ahead for a while."""
        redis = self._world.redis
        with self._one_wrong_clock() as is_mine:
            if is_mine:
                redis.offset_seconds = self._chance.choice([-300.0, -60.0, -20.0, 60.0, 300.0])
                self._sleep(20.0, 60.0)
                redis.offset_seconds = 0.0

    def redis_fails_over_to_another_clock(self) -> None:
        """The clock of the replica's host is behind or ahead for a while."""
        redis = self._world.redis
        with self._one_wrong_clock() as is_mine:
            redis.save()
            self._sleep(0.05, 6.0)
            if is_mine:
                redis.offset_seconds = self._chance.choice([-120.0, -30.0, 120.0])
            redis.fail_over()
            self._sleep(20.0, 60.0)
            if is_mine:
                redis.offset_seconds = 0.0

    def database_clock_steps(self) -> None:
        """Set the database's clock wrong by one or five minutes for a while; only one clock at a time."""
        database = self._world.database
        with self._one_wrong_clock() as is_mine:
            if is_mine:
                database.offset_seconds = self._chance.choice([-300.0, -60.0, 60.0, 300.0])
                self._sleep(20.0, 60.0)
                database.offset_seconds = 0.0

    def clock_steps(self) -> None:
        """Step the clock of one process' host; its successor there has a right one."""
        process = self._chance.choice([process for process in self._world.processes() if process.alive])
        with self._one_wrong_clock() as is_mine:
            if is_mine:
                process.skew_seconds = self._chance.choice([-3600.0, -120.0, 120.0, 3600.0])
                self._sleep(20.0, 60.0)
                process.skew_seconds = 0.0

    def slow_sweeper(self) -> None:
        """The sweeper runs rarely, and does so for a while after all other faults are repaired."""
        world = self._world
        world.beat_seconds = self._chance.uniform(2.0, 14.0)
        self._sleep(40.0, 80.0)
        world.beat_seconds = BEAT_SECONDS
        world.disturbed_until = max(world.disturbed_until, world.scheduler.now)  # bounds are short again

    @contextmanager
    def _one_wrong_clock(self) -> Iterator[bool]:
        """Yield whether this fault may set a clock wrong."""
        is_mine = not self._world.is_a_clock_wrong
        self._world.is_a_clock_wrong = True
        try:
            yield is_mine
        finally:
            if is_mine:
                self._world.is_a_clock_wrong = False
