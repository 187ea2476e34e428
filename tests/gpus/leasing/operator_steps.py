"""Operators' changes while the lease machine runs: servers, the order, weights, pauses."""

from __future__ import annotations

import random

from gpus.protocol import BANDS, TenantSpec, split_slot
from tests.gpus.leasing.checks import SERVERS, TENANTS
from tests.gpus.leasing.lease_harness import POOL, LeaseHarness
from tests.gpus.leasing.plain_model import PlainLeases

MODELS, HOSTS = ("flux", "ltx2", "zimg"), (None, None, None, "box")


class OperatorSteps:
    harness: LeaseHarness
    model: PlainLeases
    chance: random.Random

    def put_back(self, name: str) -> None:
        host = "box" if name == "s3" else None
        self._configure(name, 2, MODELS[:2] if name == "s2" else MODELS, "on", host)

    def change(self) -> None:
        models = self.chance.choice([MODELS, MODELS[:2], MODELS[2:]])
        desired = self.chance.choice(["on", "on", "draining", "off"])
        slots = self.chance.randint(0, 3)
        self._configure(self.chance.choice(SERVERS), slots, models, desired, self.chance.choice(HOSTS))

    def _configure(
        self, name: str, slots: int, models: tuple[str, ...], desired: str, host: str | None
    ) -> None:
        self.model.configure(name, slots, models, desired, host or "")
        self.harness.server(name, slots, models, desired=desired, host=host)

    def forget(self) -> None:
        name = self.chance.choice(SERVERS)
        self.model.forget(name)
        self.harness.leases.forget_server(name)

    def rest(self) -> None:
        name, seconds = self.chance.choice(SERVERS), self.chance.choice([1, 10])
        if name in self.model.servers:
            self.model.rest(name, seconds * 1_000_000)
        self.harness.leases.rest_server(name, seconds)

    def switch(self) -> None:
        algorithm, patience = self.chance.choice(["fair", "fifo"]), self.chance.choice([0, 5, 30])
        self.model.fifo, self.model.patience = algorithm == "fifo", patience * 1_000_000
        self.harness.pool(algorithm, patience=patience)

    def rule(self) -> None:
        """Another weight, another highest band, another limit of running jobs."""
        tenant, weight = self.chance.choice(TENANTS), self.chance.choice([0.5, 1.0, 4.0])
        band, most = self.chance.randint(0, 2), self.chance.choice([None, None, 1, 2])
        before = sum(self.model.waiting().values())
        self.model.set_rules(tenant, weight, band, most)
        for _ in range(self.chance.choice([1, 2])):
            wakes = self.harness.leases.set_tenants([TenantSpec(tenant, weight, BANDS[band], most)])
            back = sum(self.model.waiting().values()) - before
            assert sum(wake.count for wake in wakes) <= max(0, back)

    def pause(self) -> None:
        tenants = self.chance.choice(["", "", "a", "bc", "abc"])
        before = sum(self.model.waiting().values())
        self.model.set_paused(set(tenants))
        wakes = self.harness.leases.set_paused_tenants(POOL, list(tenants))
        back = sum(self.model.waiting().values()) - before
        assert sum(wake.count for wake in wakes) <= max(0, back) or tenants

    def fill(self) -> None:
        wakes = self.harness.leases.fill()
        self.model.end_rests()
        listed = [slot for slot in self.model.slots.values() if slot.listed]
        servers = {slot.name: self.model.servers[split_slot(slot.name)[0]] for slot in listed}
        useful = {
            servers[slot.name].host or None
            for slot in listed
            if slot.state == "adoptable" or set(self.model.waiting()) & set(servers[slot.name].models)
        }
        assert {wake.host for wake in wakes} == useful
