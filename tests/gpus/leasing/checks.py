"""Invariants after every phase: slots match the plain model, and the indexes are consistent."""

from __future__ import annotations

from collections import Counter, defaultdict

import pytest
from hypothesis.stateful import invariant

from tests.gpus.leasing.lease_harness import POOL, LeaseHarness
from tests.gpus.leasing.plain_model import PlainLeases

SERVERS, TENANTS = ("s1", "s2", "s3"), ("a", "b", "c")
READ_POOL = """
local packed = redis.call('GET', KEYS[1])
local _, _, _, _, parked, _, only, w0, v0, w1, o1, v1, w2, o2, v2 = cmsgpack.unpack(packed)
return {{parked, w0, w1, w2}, {tostring(o1), tostring(o2)}, {tostring(v0), tostring(v1), tostring(v2)}, only}
"""


class Checks:
    harness: LeaseHarness
    model: PlainLeases
    virtual: list[float]
    most_ordered = 4
    """So many lines of a tenant are named in the orders of their models."""

    @invariant()
    def slots_match_their_leases(self) -> None:
        seen = {
            view.slot: (view.state, view.job_id, view.attempt_id, view.warm_model, view.follower_id)
            for server in SERVERS
            for view in self.harness.leases.slots(server)
        }
        assert seen == {
            slot.name: (
                slot.state,
                slot.lease.job if slot.lease else None,
                slot.lease.attempt if slot.lease else None,
                slot.warm,
                slot.follower.attempt if slot.follower else None,
            )
            for slot in self.model.slots.values()
        }
        assert self.harness.leases.depth(POOL).slots == self.model.states()
        holders = [slot for slot in self.model.slots.values() if slot.state in ("leased", "adoptable")]
        jobs = [lease.job for slot in holders for lease in (slot.held, slot.follower) if lease]
        assert len(jobs) == len(set(jobs))
        assert all(slot.state == "leased" for slot in self.model.slots.values() if slot.follower)

    @invariant()
    def indexes_match_the_tickets(self) -> None:
        found = Index(self.harness)
        turn: dict[str, dict[str, float]] = defaultdict(dict)
        heads: dict[str, dict[str, float]] = defaultdict(dict)
        models: dict[str, dict[str, float]] = defaultdict(dict)
        ready = self.model.ready()
        for ticket in sorted(self.model.line.values(), key=self.model.own_order):
            band = self.model.band_of(ticket)
            line = f"{ticket.asked}{ticket.model}"
            models[f"{band}:{ticket.tenant}"].setdefault(line, float(self.model.own_score(ticket)))
            for queue in (f"{band}", f"{band}:{ticket.model}") if ticket in ready else ():
                turn[queue][ticket.tenant] = self.model.bands[band].turn[ticket.tenant]
                heads[queue].setdefault(ticket.tenant, float(ticket.score))
        depth = self.harness.leases.depth(POOL)
        assert (depth.waiting, depth.parked) == (self.model.waiting(), self.model.parked())
        assert found.tickets() == {
            (f"{t.asked}:{t.model}:{t.tenant}", t.member): float(t.score) for t in self.model.line.values()
        }
        assert found.zsets("models") == models
        only = self.harness.client.eval(READ_POOL, 1, f"{self.harness.prefix}pool:{POOL}")[3]
        if only != ",":  # the queue's order is that of the only model that ever came
            assert {ticket.model for ticket in self.model.line.values()} <= {only}
            for orders in (turn, heads):
                for queue in [queue for queue in orders if ":" in queue]:
                    del orders[queue]
        classes = self.harness.client.hgetall(f"{self.harness.prefix}classes:{POOL}")
        by_class: dict[str, dict[str, float]] = defaultdict(dict)
        for queue in [queue for queue in turn if ":" not in queue]:
            broad = {
                tenant: {name[1:] for name in models[f"{queue}:{tenant}"]}
                for tenant in turn[queue]
                if only == "," and len(models[f"{queue}:{tenant}"]) > self.most_ordered
            }
            for tenant, waits_for in broad.items():
                for model in waits_for:
                    turn[f"{queue}:{model}"].pop(tenant, None)
                for name, served in classes.items():
                    if waits_for & set(served.split(",")):
                        by_class[f"{queue}:{name}"][tenant] = turn[queue][tenant]
            assert self.harness.client.smembers(f"{self.harness.prefix}broad:{POOL}:{queue}") == set(broad)
        for kind, orders in (("turn", turn), ("class_turn", by_class)):
            assert found.zsets(kind) == {
                queue: pytest.approx(tags, rel=1e-12) for queue, tags in orders.items() if tags
            }
        assert found.zsets("heads") == heads
        listed = {slot.name for slot in self.model.slots.values() if slot.listed}
        assert {slot for slots in found.zsets("free").values() for slot in slots} == listed
        assert sum(count for hosts in found.zsets("open").values() for count in hosts.values()) == len(listed)
        assert self.harness.client.hgetall(self.harness.prefix + "held") == self.model.holders

    @invariant()
    def no_tenant_is_forgotten(self) -> None:
        """Which tenants wait, how much each runs, and that no limit is exceeded. The job of a dropped
        follower waits again."""
        client, prefix = self.harness.client, self.harness.prefix
        assert not self.model.dropped
        tickets = list(self.harness.tickets.values())
        reachable = [
            one.job_id in self.model.holders or (one.job_id, one.priority) in self.model.line
            for one in tickets
        ]
        assert self.harness.leases.has_tickets(POOL, tickets) == reachable
        for tenant in TENANTS:
            waits = client.smembers(f"{prefix}waits:{tenant}")
            assert waits == ({POOL} if any(t.tenant == tenant for t in self.model.line.values()) else set())
            running = client.scard(f"{prefix}running:{tenant}")
            most = self.model.rules[tenant].most
            assert running == (0 if most is None else self.model.running(tenant))
            if most is not None and running >= most:
                assert tenant not in {ticket.tenant for ticket in self.model.ready()}

    @invariant()
    def counts_are_right_and_virtual_time_never_goes_back(self) -> None:
        before, self.virtual = self.virtual, [band.virtual for band in self.model.bands]
        assert all(old <= new for old, new in zip(before, self.virtual, strict=True))
        counts, allowance, virtual, _ = self.harness.client.eval(
            READ_POOL, 1, f"{self.harness.prefix}pool:{POOL}"
        )
        ready = Counter(map(self.model.band_of, self.model.ready()))
        assert counts == [len(self.model.parked_tenants()), ready[0], ready[1], ready[2]]
        assert [float(value) for value in allowance] == pytest.approx(
            [band.allowance for band in self.model.bands[1:]], rel=1e-9, abs=1e-9
        )
        assert [float(value) for value in virtual] == pytest.approx(self.virtual, rel=1e-12)


class Index:
    """The zsets of the pool, as they lie in Redis."""

    def __init__(self, harness: LeaseHarness) -> None:
        kinds = ("line", "turn", "class_turn", "heads", "models", "free", "open")
        names = sorted(
            name for name in harness.all_keys() if name.startswith(tuple(f"{kind}:{POOL}:" for kind in kinds))
        )
        pipeline = harness.client.pipeline(transaction=False)
        for name in names:
            pipeline.zrange(harness.prefix + name, 0, -1, withscores=True)
        self._zsets: dict[str, dict[str, float]] = dict(
            zip(names, map(dict, pipeline.execute()), strict=True)
        )

    def zsets(self, kind: str) -> dict[str, dict[str, float]]:
        """By the part of the key name after the pool."""
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
