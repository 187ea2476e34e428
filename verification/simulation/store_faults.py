"""Faults of Redis and database that still answer: full, outdated, or down for some fleets only."""

from __future__ import annotations

from verification.simulation.operators import Operators


class StoreFaults(Operators):
    """Faults of the stores."""

    def redis_full(self) -> None:
        """At maxmemory, with a whole index: commands that need memory are refused."""
        self._await_index()
        self._world.redis.fill_up()
        self._sleep(5.0, 40.0)
        self._world.redis.free_memory()

    def redis_fails_over_and_back(self) -> None:
        """Promote a replica that lacks the last writes, and shortly after the former master, which has
        replicated all from it by then."""
        redis = self._world.redis
        first = redis.run_id
        redis.save()
        self._sleep(0.05, 6.0)
        redis.fail_over()
        second = redis.run_id
        self._sleep(0.02, 3.0)
        if redis.run_id == second:
            redis.save()
            redis.fail_over(first)

    def fleet_hangs(self) -> None:
        """One fleet's Redis node of a cluster hangs, while those of other fleets answer."""
        world = self._world
        fleet = self._chance.choice(world.fleets)
        world.active_faults.silent_fleets.add(fleet)
        self._sleep(40.0, 90.0)
        world.active_faults.silent_fleets.discard(fleet)
        world.disturbed_until = max(world.disturbed_until, world.scheduler.now)  # it needs a while

    def database_forgets(self) -> None:
        """Promote an asynchronous standby, which lacks the last commits."""
        self._world.forget_commits(self._chance.uniform(0.05, 2.0))
