"""What must hold after every phase: slots are as the plain model has them, and the indexes tell the truth."""

from __future__ import annotations

from collections import Counter, defaultdict

import pytest
from hypothesis.stateful import invariant

from .plain_model import PlainLeases
from .rig import POOL, Rig

SERVERS = ("s1", "s2", "s3")
READ_POOL = """
local _, _, _, parked, w0, v0, w1, p1, v1, w2, p2, v2 = cmsgpack.unpack(redis.call('GET', KEYS[1]))
return {{parked, w0, w1, w2}, {p1, p2}, {tostring(v0), tostring(v1), tostring(v2)}}
"""


class Checks:
    rig: Rig
    model: PlainLeases
    virtual: list[float]

    @invariant()
    def slots_are_what_they_should_be(self) -> None:
        seen = {
            view.slot: (view.state, view.job_id, view.attempt_id, view.warm_model)
            for server in SERVERS
            for view in self.rig.leases.slots(server)
        }
        assert seen == {
            slot.name: (
                slot.state,
                slot.lease.job if slot.lease else None,
                slot.lease.attempt if slot.lease else None,
                slot.warm,
            )
            for slot in self.model.slots.values()
        }
        assert self.rig.leases.depth(POOL).slots == self.model.states()
        holders = [
            slot.held.job for slot in self.model.slots.values() if slot.state in ("leased", "adoptable")
        ]
        assert len(holders) == len(set(holders))

    @invariant()
    def indexes_tell_the_truth(self) -> None:
        found = Index(self.rig)
        turn: dict[str, dict[str, float]] = defaultdict(dict)
        heads: dict[str, dict[str, float]] = defaultdict(dict)
        for ticket in self.model.ready():
            for queue in (f"{ticket.band}", f"{ticket.band}:{ticket.model}"):
                turn[queue][ticket.tenant] = self.model.bands[ticket.band].turn[ticket.tenant]
                earlier = heads[queue].get(ticket.tenant, float("inf"))
                heads[queue][ticket.tenant] = min(earlier, float(ticket.score))
        depth = self.rig.leases.depth(POOL)
        assert (depth.waiting, depth.parked) == (self.model.waiting(), self.model.parked())
        assert found.tickets() == {
            (f"{t.band}:{t.model}:{t.tenant}", t.member): float(t.score) for t in self.model.line.values()
        }
        assert found.zsets("turn") == turn
        assert found.zsets("heads") == heads
        listed = {slot.name for slot in self.model.slots.values() if slot.listed}
        assert {slot for slots in found.zsets("free").values() for slot in slots} == listed
        assert sum(count for hosts in found.zsets("open").values() for count in hosts.values()) == len(listed)
        assert set(self.rig.client.hkeys(self.rig.prefix + "held")) == set(self.model.holders)

    @invariant()
    def counts_are_right_and_virtual_time_never_goes_back(self) -> None:
        before, self.virtual = self.virtual, [band.virtual for band in self.model.bands]
        assert all(old <= new for old, new in zip(before, self.virtual, strict=True))
        counts, passed, virtual = self.rig.client.eval(READ_POOL, 1, f"{self.rig.prefix}pool:{POOL}")
        ready = Counter(waiting.band for waiting in self.model.ready())
        assert counts == [len(self.model.paused), ready[0], ready[1], ready[2]]
        assert passed == [band.passed for band in self.model.bands[1:]]
        assert [float(value) for value in virtual] == pytest.approx(self.virtual, rel=1e-12)


class Index:
    """The zsets of the pool, as they lie in Redis."""

    def __init__(self, rig: Rig) -> None:
        kinds = ("line", "turn", "heads", "free", "open")
        names = sorted(
            name for name in rig.all_keys() if name.startswith(tuple(f"{kind}:{POOL}:" for kind in kinds))
        )
        pipeline = rig.client.pipeline(transaction=False)
        for name in names:
            pipeline.zrange(rig.prefix + name, 0, -1, withscores=True)
        self._zsets: dict[str, dict[str, float]] = dict(
            zip(names, map(dict, pipeline.execute()), strict=True)
        )

    def zsets(self, kind: str) -> dict[str, dict[str, float]]:
        """By what stands behind the pool in the name."""
        start = f"{kind}:{POOL}:"
        return {
            name.removeprefix(start): zset for name, zset in self._zsets.items() if name.startswith(start)
        }

    def tickets(self) -> dict[tuple[str, str], float]:
        return {
            (line, member): score
            for line, zset in self.zsets("line").items()
            for member, score in zset.items()
        }
