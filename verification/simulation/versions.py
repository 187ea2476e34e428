"""The key layout of new processes, and of each fleet's index."""

from __future__ import annotations

from functools import cache, partial

from gpus.leasing import keys
from gpus.leasing.contract import Leases
from gpus.protocol import FIRST_LAYOUT, Clock
from gpus.registry.index_sync import LeasesOf
from gpus.registry.layouts import Layouts, read_index_states
from verification.simulation.database import connection
from verification.simulation.redis_link import RedisServer


class Versions:
    """The key layouts of processes and indexes. differ: whether processes of another layout may start.
    newest: the layout of new processes."""

    def __init__(self, redis: RedisServer, *, differ: bool) -> None:
        self._redis, self.differ = redis, differ
        self.newest = keys.LAYOUT
        self.is_changing = False

    def change(self) -> None:
        """Switch new processes to the next layout, or back."""
        self.newest = keys.LAYOUT if self.newest != keys.LAYOUT else keys.LAYOUT + 1

    def of_new_process(self, clock: Clock) -> tuple[Layouts, LeasesOf]:
        """Return the layouts of its code, and its access to the indexes of its own layout."""
        read = read_index_states if self.differ else None
        layouts = Layouts(read, layout=self.newest, monotonic=clock.monotonic)

        def leases(fleet: str) -> Leases:
            return self._redis.leases(fleet, layouts.layout, partial(layouts.refusal, fleet))

        return layouts, cache(leases)

    def of_the_judge(self) -> tuple[Layouts, LeasesOf]:
        """The judge reads the index that is in use."""
        leases = cache(self._redis.leases)
        return Layouts(), lambda fleet: leases(fleet, self.in_use(fleet))

    def in_use(self, fleet: str) -> int:
        """Return the layout in the fleet's row; read without Django, so that it is no step."""
        found = connection.connection.execute("SELECT layout FROM gpus_fleetindex WHERE fleet = ?", [fleet])
        (layout,) = found.fetchone() or (FIRST_LAYOUT,)
        return int(layout)

    def is_whole(self, fleet: str) -> bool:
        """Return True if the index in use is whole."""
        return self._redis.is_whole(fleet, self.in_use(fleet))

    def is_held(self, fleet: str, job_id: str) -> bool:
        """Return True if the index in use has a lease of the job."""
        return self._redis.is_held(fleet, job_id, self.in_use(fleet))
