"""Which key layout processes have that start now, and which one each fleet's index has."""

from __future__ import annotations

from functools import cache, partial

from gpus.leasing import keys
from gpus.leasing.contract import Leases
from gpus.protocol import FIRST_LAYOUT, Clock
from gpus.registry.index_sync import LeasesOf
from gpus.registry.processes import Layouts, read_index_states
from verification.simulation.database import connection
from verification.simulation.redis_link import RedisServer


class Versions:
    """differ: whether processes of another layout may come. newest: the layout of those that start now."""

    def __init__(self, redis: RedisServer, *, differ: bool) -> None:
        self._redis, self.differ = redis, differ
        self.newest = keys.LAYOUT
        self.is_changing = False

    def change(self) -> None:
        """To the next layout, or back: of processes that start from now on."""
        self.newest = keys.LAYOUT if self.newest != keys.LAYOUT else keys.LAYOUT + 1

    def of_new_process(self, clock: Clock) -> tuple[Layouts, LeasesOf]:
        """What it knows of layouts, and how it reaches the indexes of its own."""
        read = read_index_states if self.differ else None
        layouts = Layouts(read, layout=self.newest, monotonic=clock.monotonic)

        def leases(fleet: str) -> Leases:
            return self._redis.leases(fleet, layouts.layout, partial(layouts.refusal, fleet))

        return layouts, cache(leases)

    def of_the_judge(self) -> tuple[Layouts, LeasesOf]:
        """Who judges looks at the index that is in use."""
        leases = cache(self._redis.leases)
        return Layouts(), lambda fleet: leases(fleet, self.in_use(fleet))

    def in_use(self, fleet: str) -> int:
        """By the row; asked past Django, so that it is no step."""
        found = connection.connection.execute("SELECT layout FROM gpus_fleetindex WHERE fleet = ?", [fleet])
        (layout,) = found.fetchone() or (FIRST_LAYOUT,)
        return int(layout)

    def is_whole(self, fleet: str) -> bool:
        """The index that is in use."""
        return self._redis.is_whole(fleet, self.in_use(fleet))

    def is_held(self, fleet: str, job_id: str) -> bool:
        """The job, in the index that is in use."""
        return self._redis.is_held(fleet, job_id, self.in_use(fleet))
