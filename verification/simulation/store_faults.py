"""Redis and database that answer, and yet are full, old, or gone for some fleets only."""

from __future__ import annotations

from verification.simulation.operators import Operators


class StoreFaults(Operators):
    def redis_full(self) -> None:
        """At maxmemory, with a whole index: commands that need memory are refused."""
        self._await_index()
        self._world.redis.fill_up()
        self._sleep(5.0, 40.0)
        self._world.redis.get_room()

    def redis_fails_over_and_back(self) -> None:
        """A replica that lacks the last writes is promoted, and shortly after the process that had lost its
        role to it, which has got all from it by then."""
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
        """Its Redis node of a cluster, while those of other fleets answer."""
        world = self._world
        fleet = self._chance.choice(world.fleets)
        world.active_faults.silent_fleets.add(fleet)
        self._sleep(40.0, 90.0)
        world.active_faults.silent_fleets.discard(fleet)
        world.disturbed_until = max(world.disturbed_until, world.scheduler.now)  # it needs a while

    def database_forgets(self) -> None:
        """An asynchronous standby is promoted, which lacks the last commits."""
        self._world.forget_commits(self._chance.uniform(0.05, 2.0))
