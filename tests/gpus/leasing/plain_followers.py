"""Dispatch in plain Python: the holder of a slot, and its follower."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tests.gpus.leasing.plain_servers import PlainServers
from tests.gpus.leasing.plain_values import LEASE_US, Held, Server, Slot, Waiting, Warm


class PlainFollowers(PlainServers):
    def __init__(self) -> None:
        super().__init__()
        self.settling: dict[str, Held] = {}
        self.dropped: list[Held] = []  # followers that do not begin: their jobs wait for being pushed again

    # -- how many jobs of a tenant run -------------------------------------------------------------------

    def running(self, tenant: str) -> int:
        """A follower counts: it may have begun."""
        holding = [slot for slot in self.slots.values() if slot.state in ("leased", "adoptable")]
        leases = [lease for slot in holding for lease in (slot.held, slot.follower) if lease]
        return sum(lease.tenant == tenant and lease.attempt not in self.settling for lease in leases)

    def begins_to_wait(self, tenant: str) -> None:
        self.apply_max_running(tenant, self.running(tenant))

    def _heed_max_running(self, tenant: str) -> None:
        """A limit is checked where a ticket waits."""
        if any(waiting.tenant == tenant for waiting in self.line.values()):
            self.apply_max_running(tenant, self.running(tenant))

    # -- tickets become leases ---------------------------------------------------------------------------

    def _give(self, slot: Slot, ticket: Waiting, overtakes: bool, attempt: str, worker: str) -> Held:
        lease = self._take_for(slot, ticket, overtakes, attempt, worker)
        self._begin(slot, lease)
        self._heed_max_running(lease.tenant)
        return lease

    def _take_for(self, slot: Slot, ticket: Waiting, overtakes: bool, attempt: str, worker: str) -> Held:
        band = self.band_of(ticket)
        seconds, charged_bands = self.take(ticket, overtakes)
        self.holders[ticket.job] = attempt
        return Held(
            ticket.job, attempt, 1, ticket.model, ticket.tenant, ticket.priority, seconds, self.now, worker,
            slot.name, self._server(slot).host, band, charged_bands, expires_us=self.now + LEASE_US,
            fence=max(slot.fence + 1, self.now),
        )  # fmt: skip

    def _begin(self, slot: Slot, lease: Held) -> None:
        slot.state, slot.lease, slot.warm, slot.since_us = "leased", lease, lease.model, self.now
        slot.fence, slot.listed = lease.fence, False
        slot.rest_us = slot.rests_until = 0

    def is_at_max_running(self, tenant: str) -> bool:
        most = self.rules[tenant].most
        return most is not None and self.running(tenant) >= most

    def _leaves_room(self, tenant: str, holder_tenant: str) -> bool:
        """Also with one more that does not run yet, the tenant may use every slot."""
        most = self.rules[tenant].most
        beside = self.running(tenant) // 2 + (tenant == holder_tenant)
        return most is None or most >= len(self.slots) + beside

    def _next_for(
        self, slot: Slot, warm: Warm, may_run: Callable[[str], bool] = lambda tenant: True
    ) -> tuple[Waiting, bool] | None:
        """The next ticket, and whether it overtakes a higher band. may_run: called with the next tenant; if
        it returns False, no other ticket is chosen."""
        server = self._server(slot)
        while found := self.best(server.models, server.name):
            overtakes = self.overtakes(found[1], server.models)
            if not may_run(found[1].tenant):
                return None
            ticket = self._prefer_warm(found[1], slot, server, warm)
            if not may_run(ticket.tenant):
                return None
            if not self._drop_second(ticket):
                return ticket, overtakes
        return None

    def _drop_second(self, ticket: Waiting) -> bool:
        """The job holds a slot already."""
        return ticket.job in self.holders and self.remove(ticket.key)

    def _forget_job(self, lease: Held) -> None:
        if self.holders.get(lease.job) == lease.attempt:
            del self.holders[lease.job]

    def _holds(self, slot: Slot, worker: str) -> bool:
        return slot.held.worker == worker or (slot.held.worker == "" and slot.state == "leased")

    def _may_go_on(self, slot: Slot, server: Server) -> bool:
        """To another job, without being free in between."""
        rests = server.rests_until > self.now
        return self._has_room(server, slot) and server.host == slot.held.host and not rests

    # -- followers ---------------------------------------------------------------------------------------

    def followed_under(self, slot: str, job: str, attempt: str, epoch: int) -> Slot | None:
        found = self.slots.get(slot)
        one = found.follower if found else None
        return found if one and (one.job, one.attempt, one.epoch) == (job, attempt, epoch) else None

    def reserve(self, slot: Slot, worker: str, attempt: str, warm: Warm) -> Held | None:
        """The caller has looked it up by `under`."""
        if slot.state != "leased" or not self._holds(slot, worker):
            return None
        if slot.follower:
            return slot.follower if slot.follower.attempt == attempt else None
        return self._follow(slot, attempt, worker, warm)

    def _follow(self, slot: Slot, attempt: str, worker: str, warm: Warm) -> Held | None:
        """If fewer wait than run, another slot is free for them sooner."""
        leased = sum(one.state == "leased" for one in self.slots.values())
        if not self._may_go_on(slot, self._server(slot)) or len(self.ready()) < leased:
            return None
        tenant = slot.held.tenant
        if self.is_at_max_running(tenant) and any(one.tenant == tenant for one in self.line.values()):
            return None
        found = self._next_for(slot, warm, lambda tenant: self._leaves_room(tenant, slot.held.tenant))
        if found is None:
            return None
        slot.follower = self._take_for(slot, *found, attempt, worker)
        self._heed_max_running(slot.follower.tenant)
        return slot.follower

    def _begin_follower(self, slot: Slot, worker: str, host: str, expires_us: int) -> Held:
        """The holder's lease has ended. The follower counted for its tenant's limit already; its time counts
        from now, or from its claim if its start is unknown."""
        follower, slot.follower = slot.follower, None
        assert follower is not None
        if expires_us > self.now:
            follower.leased_us = self.now
        follower.worker, follower.host, follower.expires_us = worker, host, expires_us
        self._begin(slot, follower)
        return follower

    def _drop_follower(self, slot: Slot) -> None:
        """Free of charge. A process may know its fence, so the next one is higher."""
        follower, slot.follower = slot.follower, None
        if follower is None:
            return
        self.dropped.append(replace(follower))
        slot.fence = max(slot.fence, follower.fence)
        self._correct(follower, 0.0)
        self._heed_max_running(follower.tenant)
        self._forget_job(follower)

    def _restore(self, slot: Slot, lost: Held, worker: str) -> None:
        """It began, and is not known any more: nor is that its tenant was charged."""
        self.remove((lost.job, lost.priority))
        band = max((lost.priority - 1) // 3, self.rules[lost.tenant].band)
        lease = replace(
            lost, worker=worker, host=self._server(slot).host, band=band, charged_bands=frozenset(),
            expires_us=self.now + LEASE_US, fence=max(slot.fence + 1, lost.fence),
        )  # fmt: skip
        self._correct_turn(lease, lease.charged)
        self.holders[lease.job] = lease.attempt
        self._begin(slot, lease)
        self._heed_max_running(lease.tenant)

    def give_back_follower(self, slot: Slot, worker: str) -> None:
        """The caller has looked it up by `followed_under`."""
        if slot.held.worker == worker:
            self._drop_follower(slot)
