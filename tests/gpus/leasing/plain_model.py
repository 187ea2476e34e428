"""The specification of leases in plain Python. The line is in `plain_line`, dispatch in
`plain_followers`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from gpus.protocol import split_slot
from tests.gpus.leasing.plain_followers import PlainFollowers
from tests.gpus.leasing.plain_values import (
    ADOPTION_REST_CAP_US,
    LEASE_US,
    NEWEST_COUNTS,
    Held,
    Server,
    Slot,
    Waiting,
    Warm,
)


class PlainLeases(PlainFollowers):
    """One pool. Times in microseconds."""

    def __init__(self) -> None:
        super().__init__()
        self.unended: set[tuple[str, str]] = set()  # means that are a running job's time so far
        self.floor = self.had_time = self.granted = 0
        self.reached = 0
        self.silent = 0

    def set_rules(self, tenant: str, weight: float, band: int, most: int | None) -> None:
        rules = self.rules[tenant]
        rules.weight, had = weight, rules.most
        self.grant(tenant, band)
        rules.most = most
        if most != had:
            self._heed_max_running(tenant)

    # -- leases ------------------------------------------------------------------------------------------

    def claim(self, attempt: str, worker: str, host: str, warm: Warm = None) -> tuple[Held, bool] | None:
        for slot in self.slots.values():
            lease = slot.lease
            if lease and slot.state in ("leased", "adoptable") and attempt in (lease.attempt, lease.asked):
                ours = slot.state == "leased" and lease.worker == worker
                return (lease, lease.asked == attempt) if ours else None
        self.end_rests()
        mine = sorted(
            (s for s in self.slots.values() if s.listed and self._server(s).host == host),
            key=lambda s: (s.since_us, s.name),
        )
        waiting = [slot for slot in mine if slot.state == "adoptable"]
        for slot in sorted(waiting, key=lambda s: (max(s.since_us, s.rests_until), s.name)):
            if slot.rests_until <= self.now:
                slot.state, slot.listed, slot.since_us = "leased", False, self.now
                slot.held.worker, slot.held.asked = worker, attempt
                slot.held.expires_us = self.now + LEASE_US
                return slot.held, True
        free = [slot for slot in mine if slot.state == "free"]
        waits_for_near: set[str] = set()
        while chosen := self._choose(free, warm, waits_for_near):
            if not self._drop_second(chosen[1]):
                return self._give(*chosen, attempt, worker), False
        return None

    def _choose(
        self, mine: list[Slot], warm: Warm, waits_for_near: set[str]
    ) -> tuple[Slot, Waiting, bool] | None:
        """waits_for_near: classes whose first ticket waits for its near server."""
        mine = [slot for slot in mine if self._server(slot).class_id not in waits_for_near]
        classes = {self._server(slot).class_id: self._server(slot).models for slot in mine}
        candidates = []
        for class_id in sorted(classes):
            if found := self.best(classes[class_id]):
                candidates.append((found[0], self.rank(found[1]), class_id, found[1]))
        if not candidates:
            return None
        _, _, class_id, ticket = min(candidates, key=lambda c: c[:3])
        overtakes = self.overtakes(ticket, classes[class_id])
        fitting = sorted(
            (s for s in mine if ticket.model in self._server(s).models),
            key=lambda s: (self._server(s).class_id, s.since_us, s.name),
        )
        near = self._near(ticket)
        near_slot = self._free_slot_of(near, ticket.model) if near else None
        if near_slot in mine:
            return near_slot, ticket, overtakes
        elsewhere = [s for s in fitting if split_slot(s.name)[0] != self._avoids(ticket)]
        warm_slots = [slot for slot in elsewhere if warm is None and slot.warm == ticket.model]
        for slot in warm_slots or elsewhere:
            server, chosen = self._server(slot), ticket
            if near:
                found = self.best(server.models, server.name)
                if found is None:
                    waits_for_near.add(server.class_id)
                    return self._choose(mine, warm, waits_for_near)
                chosen, overtakes = found[1], self.overtakes(found[1], server.models)
            if not warm_slots or chosen is not ticket:
                chosen = self._prefer_warm(chosen, slot, server, warm)
            return slot, chosen, overtakes
        server = self._server(fitting[0])
        following = self.best(server.models, server.name)
        if following is None:
            return None
        return fitting[0], following[1], self.overtakes(following[1], server.models)

    def under(self, slot: str, job: str, attempt: str, epoch: int) -> Slot | None:
        found = self.slots.get(slot)
        if found is None or found.state not in ("leased", "adoptable"):
            return None
        lease = found.held
        return found if (lease.job, lease.attempt, lease.epoch) == (job, attempt, epoch) else None

    def release(  # noqa: PLR0917
        self,
        slot: Slot,
        mode: str,
        worker: str,
        seconds: float | None,
        following: str | None,
        rest_us: int | None,
        warm: Warm = None,
        begun: Held | None = None,
    ) -> Held | None:
        """The caller has found the slot by `under`. begun: a follower that runs already."""
        lease, server = slot.held, self._server(slot)
        if not self._holds(slot, worker) or (mode == "adopt" and slot.state != "leased"):
            return None
        slot.listed = False
        if mode in ("adopt", "free"):
            self._drop_follower(slot)
        if mode == "adopt":
            lease.worker, lease.asked = "", None
            slot.state, slot.since_us, slot.listed = "adoptable", self.now, True
            if rest_us is not None:
                slot.rest_us = min(2 * slot.rest_us or rest_us, ADOPTION_REST_CAP_US)
                slot.rests_until = self.now + slot.rest_us
            return None
        real = self._correct(lease, 0.0 if mode == "free" and seconds is None else seconds)
        lease.asked = None
        if mode == "free":
            self._forget_job(lease)
        else:
            lease.worker, lease.expires_us = worker, self.now + LEASE_US
            self.settling[lease.attempt] = lease
            self._heed_max_running(lease.tenant)
        if rest_us is not None:
            self.rest(server.name, rest_us)
        if mode == "free":
            self._idle(slot, self.now)
            self._heed_max_running(lease.tenant)
            return None
        if mode == "suspect":
            self._drop_follower(slot)
            slot.state, slot.since_us = "quarantined", self.now
            return None
        if real > 0:
            for key_tenant in (lease.tenant, None):
                mean = self.means.get((lease.model, key_tenant), real)
                if key_tenant is not None and (lease.model, key_tenant) in self.unended:
                    self.unended.discard((lease.model, key_tenant))
                    mean = max(mean, real)
                self.means[lease.model, key_tenant] = mean + NEWEST_COUNTS * (real - mean)
        return self._hand_on(slot, worker, following, warm, begun)

    def _hand_on(
        self, slot: Slot, worker: str, following: str | None, warm: Warm, begun: Held | None
    ) -> Held | None:
        server, follower = self._server(slot), slot.follower
        if begun:
            if begun is follower:
                self._begin_follower(slot, worker, server.host, self.now + LEASE_US)
            else:
                self._drop_follower(slot)
                self._restore(slot, begun, worker)
            return self._follow(slot, following, worker, warm) if following else None
        if following and self._may_go_on(slot, server):
            if follower and follower.attempt == following and follower.tenant not in self.paused:
                return self._begin_follower(slot, worker, server.host, self.now + LEASE_US)
            self._drop_follower(slot)
            if found := self._next_for(slot, warm):
                return self._give(slot, *found, following, worker)
        self._drop_follower(slot)
        slot.state, slot.since_us = "settling", self.now
        return None

    def confirm_ends(self, attempt: str) -> None:
        lease = self.settling.pop(attempt, None)
        if lease is None:
            return
        self._forget_job(lease)
        slot = self.slots.get(lease.slot)
        if slot and slot.state == "settling" and slot.held.attempt == attempt:
            self._idle(slot, self.now)

    def take_over(self, slot: Slot, worker: str, epoch: int) -> bool:
        if slot.state == "leased" and not self._holds(slot, worker):
            return False
        if slot.state == "adoptable":
            slot.state, slot.listed, slot.since_us = "leased", False, self.now
        slot.held.worker, slot.held.epoch, slot.held.asked = worker, epoch, None
        slot.rest_us = slot.rests_until = 0
        slot.held.expires_us = self.now + LEASE_US
        return True

    def renew(self, slot: Slot | None, lease: Held, worker: str) -> bool:
        if slot is None:
            if lease.attempt not in self.settling:
                return False
        elif slot.held.worker == worker:
            if slot.state == "adoptable":
                slot.rest_us = slot.rests_until = 0
                slot.state, slot.listed, slot.since_us = "leased", False, self.now
        elif slot.held.worker == "" and slot.state == "leased":
            slot.held.worker, slot.held.asked = worker, None
        else:
            return False
        lease.expires_us = self.now + LEASE_US
        held = (self.now - lease.leased_us) / 1_000_000
        if slot is not None and held > lease.charged:  # it takes longer than it was charged for
            if self.means.get((lease.model, lease.tenant), 0.0) < held:
                self.means[lease.model, lease.tenant] = held
                self.unended.add((lease.model, lease.tenant))
            self._correct(lease, 2 * held)
        return True

    # -- repair --------------------------------------------------------------------------------------------

    def _expiring(self) -> Iterator[Held]:
        yield from (slot.held for slot in self.slots.values() if slot.state == "leased")
        yield from self.settling.values()

    def is_expired(self, lease: Held) -> bool:
        floor = 0 if lease.expires_us < self.had_time else self.floor
        return max(lease.expires_us, floor) <= self.now

    def reach(self) -> None:
        """A keeper's renewal or a sweep's look: the index is not cut off."""
        self.silent = max(self.silent, self.now - self.reached)
        self.reached = self.now

    def expired(self, gap_us: int) -> list[str]:
        self.reach()
        if self.silent > gap_us and self.floor <= self.now:
            self.had_time, self.granted = self.granted + LEASE_US, self.now
            self.floor = self.now + LEASE_US
        self.silent = 0
        found = [lease for lease in self._expiring() if self.is_expired(lease)]
        return sorted(lease.attempt for lease in found)

    def resolve(self, lease: Held, verdict: str) -> bool:
        """The caller has taken it from `expired`."""
        slot = self.slots.get(lease.slot)
        if lease.attempt in self.settling:
            if verdict == "followed":
                return False
            waits = slot is not None and slot.state == "settling" and slot.held.attempt == lease.attempt
            if verdict == "adoptable" and not waits:
                return False
            del self.settling[lease.attempt]
            if verdict != "adoptable":
                self._forget_job(lease)
            if not waits:
                return True
        elif verdict == "followed":
            return slot is not None and self._let_follow(slot)
        else:
            assert slot is not None
            self._drop_follower(slot)
            if verdict != "adoptable":
                self._correct(lease, None)
                self._forget_job(lease)
        assert slot is not None
        if verdict == "free":
            self._idle(slot, self.now)
        else:
            slot.state, slot.since_us, slot.listed = verdict, self.now, verdict == "adoptable"
        self._heed_max_running(lease.tenant)
        return True

    def _let_follow(self, slot: Slot) -> bool:
        """The follower holds the slot, and has expired as well."""
        ended = slot.held
        if slot.follower is None:
            return False
        self._correct(ended, None)
        self._forget_job(ended)
        self._begin_follower(slot, ended.worker, ended.host, self.now)
        self._heed_max_running(ended.tenant)
        return True

    def quarantine(self, name: str, attempt: str) -> None:
        server, _ = split_slot(name)
        if server not in self.servers:
            self.servers[server] = Server(server, 0, (), "off", "", gone=True)
        slot = self.slots.setdefault(name, Slot(name, "", self.now))
        if slot.state == "quarantined":
            return
        if slot.state in ("leased", "adoptable", "settling") and slot.held.attempt != attempt:
            return
        slot.listed = False
        self._drop_follower(slot)
        was, slot.state = slot.state, "quarantined"
        if was in ("leased", "adoptable"):
            self._correct(slot.held, None)
            self._forget_job(slot.held)
            slot.since_us = self.now
            self._heed_max_running(slot.held.tenant)
        self._arrange(self.servers[server])

    def free_slot(self, name: str) -> None:
        slot = self.slots.get(name)
        if slot and slot.state == "quarantined":
            self._idle(slot, slot.since_us)

    # -- looking

    def states(self) -> dict[str, int]:
        return dict(Counter(slot.state for slot in self.slots.values()))
