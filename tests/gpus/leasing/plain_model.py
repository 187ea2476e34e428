"""What the scripts mean, in plain Python: no index, every question answered by looking at everything."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from gpus.protocol import Ticket, split_slot

HEAD_START_US, LEASE_US = 60_000_000, 15_000_000
BAND_WAITS, MAX_SKIPS = 15, 8


@dataclass
class Waiting:
    """A ticket in line. avoid: '' for none."""

    job: str
    model: str
    tenant: str
    priority: int
    score: int
    avoid: str
    skips: int = 0

    @property
    def band(self) -> int:
        return (self.priority - 1) // 3

    @property
    def level(self) -> int:
        return (self.priority - 1) % 3

    @property
    def member(self) -> str:
        return f"{self.level}{self.job}"


@dataclass
class Held:
    """A lease, or the end of one."""

    job: str
    attempt: str
    epoch: int
    model: str
    tenant: str
    priority: int
    charged: float
    leased_us: int
    worker: str
    slot: str
    host: str
    asked: str | None = None
    expires_us: int = 0


@dataclass
class Slot:
    name: str
    state: str
    since_us: int
    warm: str | None = None
    lease: Held | None = None
    listed: bool = False

    @property
    def held(self) -> Held:
        assert self.lease is not None
        return self.lease


@dataclass
class Server:
    name: str
    slots: int
    models: tuple[str, ...]
    desired: str
    host: str
    rests_until: int = 0
    rests: bool = False
    gone: bool = False

    @property
    def on(self) -> bool:
        return self.desired == "on"

    @property
    def class_id(self) -> str:
        """The scripts' own id: it decides ties."""
        text = "".join(f",{model}" for model in self.models) + ","
        return f"{len(self.models):03d}-{hashlib.sha1(text.encode()).hexdigest()[:12]}"


@dataclass
class Band:
    turn: dict[str, float] = field(default_factory=dict)
    paid: dict[str, float] = field(default_factory=dict)
    virtual: float = 0.0
    passed: int = 0


class PlainLeases:
    """One pool. Times in microseconds."""

    def __init__(self) -> None:
        self.now = 0
        self.fifo, self.patience = False, 30_000_000
        self.servers: dict[str, Server] = {}
        self.slots: dict[str, Slot] = {}
        self.line: dict[str, Waiting] = {}
        self.bands = [Band(), Band(), Band()]
        self.settling: dict[str, Held] = {}
        self.holders: dict[str, str] = {}  # attempt by job: leased or settling
        self.weights: dict[str, float] = {}
        self.means: dict[tuple[str, str | None], float] = {}
        self.floor = 0
        self.ticked: int | None = None

    # -- the line ----------------------------------------------------------------------------------

    def push(self, ticket: Ticket) -> str:
        if ticket.job_id in self.holders:
            return "held"
        if ticket.job_id in self.line:
            return "duplicate"
        score = ticket.place_us + (ticket.priority - 1) % 3 * HEAD_START_US
        avoid = ticket.avoid_server or ""
        waiting = Waiting(ticket.job_id, ticket.model, ticket.tenant, ticket.priority, score, avoid)
        band = self.bands[waiting.band]
        if waiting.tenant not in band.turn:
            band.turn[waiting.tenant] = max(band.virtual, band.paid.pop(waiting.tenant, 0.0))
        self.line[waiting.job] = waiting
        return "stands"

    def remove(self, job: str) -> bool:
        waiting = self.line.get(job)
        if waiting is None:
            return False
        self._leave(waiting)
        band = self.bands[waiting.band]
        if not self._backlogged(waiting):
            band.paid[waiting.tenant] = band.turn.pop(waiting.tenant)
        return True

    def _leave(self, waiting: Waiting) -> None:
        del self.line[waiting.job]
        if not any(other.band == waiting.band for other in self.line.values()):
            self.bands[waiting.band].passed = 0

    def _backlogged(self, waiting: Waiting) -> bool:
        return any(o.tenant == waiting.tenant and o.band == waiting.band for o in self.line.values())

    # -- who is next ---------------------------------------------------------------------------------

    def _bands_in_order(self) -> list[int]:
        filled = [band for band in range(3) if any(w.band == band for w in self.line.values())]
        return sorted(filled, key=lambda band: (self.bands[band].passed < BAND_WAITS, band))

    def _rank(self, waiting: Waiting) -> tuple[float, str, int, str, str]:
        first = waiting.score if self.fifo else self.bands[waiting.band].turn[waiting.tenant]
        return first, waiting.tenant, waiting.score, waiting.model, waiting.member

    def _heads(self, band: int, models: Sequence[str], fits: Callable[[Waiting], bool]) -> list[Waiting]:
        """The first fitting ticket of every (model, tenant), best one first."""
        lines: dict[tuple[str, str], Waiting] = {}
        for waiting in sorted(self.line.values(), key=lambda w: (w.score, w.member)):
            if waiting.band == band and waiting.model in models and fits(waiting):
                lines.setdefault((waiting.model, waiting.tenant), waiting)
        return sorted(lines.values(), key=self._rank)

    def _avoids(self, waiting: Waiting) -> str | None:
        serving = [s for s in self.servers.values() if s.on and not s.gone and waiting.model in s.models]
        return waiting.avoid if waiting.avoid and waiting.skips < MAX_SKIPS and len(serving) > 1 else None

    def best(self, models: Sequence[str], server: str | None = None) -> tuple[int, Waiting] | None:
        for place, band in enumerate(self._bands_in_order()):
            heads = self._heads(band, models, lambda _: True)
            if heads and server and self._avoids(heads[0]) == server:
                skipped = heads[0]
                heads = self._heads(band, models, lambda w: self._avoids(w) != server)
                skipped.skips += 1
            if heads:
                return place, heads[0]
        return None

    def _prefer_warm(self, ticket: Waiting, slot: Slot, server: Server) -> Waiting:
        if slot.warm is None or slot.warm == ticket.model or slot.warm not in server.models:
            return ticket
        if self.now - (ticket.score - ticket.level * HEAD_START_US) >= self.patience:
            return ticket
        if ticket.skips >= MAX_SKIPS:
            return ticket
        heads = self._heads(ticket.band, [slot.warm], lambda _: True)
        if not heads or self._avoids(heads[0]) == server.name:
            return ticket
        ticket.skips += 1
        return heads[0]

    def _give(self, slot: Slot, ticket: Waiting, attempt: str, worker: str) -> Held:
        for lower in range(ticket.band + 1, 3):
            if any(w.band == lower for w in self.line.values()):
                self.bands[lower].passed += 1
        band = self.bands[ticket.band]
        band.passed = 0
        self._leave(ticket)
        seconds = self.estimate(ticket.model, ticket.tenant)
        start = band.turn.pop(ticket.tenant)
        band.virtual = max(band.virtual, start)
        account = band.turn if self._backlogged(ticket) else band.paid
        account[ticket.tenant] = start + seconds / self.weights.get(ticket.tenant, 1.0)
        lease = Held(
            ticket.job, attempt, 1, ticket.model, ticket.tenant, ticket.priority, seconds, self.now, worker,
            slot.name, self._server(slot).host, expires_us=self.now + LEASE_US,
        )  # fmt: skip
        slot.state, slot.lease, slot.warm, slot.since_us = "leased", lease, ticket.model, self.now
        slot.listed = False
        self.holders[ticket.job] = attempt
        return lease

    def estimate(self, model: str, tenant: str) -> float:
        return self.means.get((model, tenant), self.means.get((model, None), 1.0))

    # -- leases ------------------------------------------------------------------------------------------

    def claim(self, attempt: str, worker: str, host: str) -> tuple[Held, bool] | None:
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
        for slot in mine:
            if slot.state == "adoptable":
                slot.state, slot.listed, slot.since_us = "leased", False, self.now
                slot.held.worker, slot.held.asked = worker, attempt
                slot.held.expires_us = self.now + LEASE_US
                return slot.held, True
        return self._claim_free(mine, attempt, worker)

    def _claim_free(self, mine: list[Slot], attempt: str, worker: str) -> tuple[Held, bool] | None:
        classes = {self._server(slot).class_id: self._server(slot).models for slot in mine}
        candidates = []
        for class_id in sorted(classes):
            if found := self.best(classes[class_id]):
                candidates.append((found[0], self._rank(found[1])[:3], class_id, found[1]))
        if not candidates:
            return None
        ticket = min(candidates, key=lambda c: c[:3])[3]
        fitting = sorted(
            (s for s in mine if ticket.model in self._server(s).models),
            key=lambda s: (self._server(s).class_id, s.since_us, s.name),
        )
        elsewhere = [s for s in fitting if split_slot(s.name)[0] != self._avoids(ticket)]
        for slot in elsewhere:
            if slot.warm == ticket.model:
                return self._give(slot, ticket, attempt, worker), False
        for slot in elsewhere:
            return self._give(
                slot, self._prefer_warm(ticket, slot, self._server(slot)), attempt, worker
            ), False
        server = self._server(fitting[0])
        following = self.best(server.models, server.name)
        return None if following is None else (self._give(fitting[0], following[1], attempt, worker), False)

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
    ) -> Held | None:
        """The caller has looked it up by `under`."""
        lease, server = slot.held, self._server(slot)
        if lease.worker not in (worker, "") or (mode == "adopt" and slot.state != "leased"):
            return None
        slot.listed = False
        if mode == "adopt":
            lease.worker, lease.asked = "", None
            slot.state, slot.since_us, slot.listed = "adoptable", self.now, True
            return None
        real = self._correct(lease, 0.0 if mode == "free" and seconds is None else seconds)
        lease.asked = None
        if mode == "free":
            self._forget_job(lease)
        else:
            lease.worker, lease.expires_us = worker, self.now + LEASE_US
            self.settling[lease.attempt] = lease
        if rest_us is not None:
            self.rest(server.name, rest_us)
        if mode == "free":
            self._idle(slot, self.now)
            return None
        if mode == "suspect":
            slot.state, slot.since_us = "quarantined", self.now
            return None
        if real > 0:
            for who in (lease.tenant, None):
                mean = self.means.get((lease.model, who), real)
                self.means[lease.model, who] = mean + 0.2 * (real - mean)
        usable = self._usable(server, slot) and server.host == lease.host and server.rests_until <= self.now
        if following and usable and (found := self.best(server.models, server.name)):
            ticket = self._prefer_warm(found[1], slot, server)
            return self._give(slot, ticket, following, worker)
        slot.state, slot.since_us = "settling", self.now
        return None

    def _correct(self, lease: Held, seconds: float | None) -> float:
        real = (self.now - lease.leased_us) / 1_000_000 if seconds is None else seconds
        band, delta = self.bands[(lease.priority - 1) // 3], real - lease.charged
        if delta:
            account = band.turn if lease.tenant in band.turn else band.paid
            tag = account.get(lease.tenant, band.virtual)
            moved = tag + delta / self.weights.get(lease.tenant, 1.0)
            account[lease.tenant] = max(moved, min(tag, band.virtual))
        lease.charged = real
        return real

    def _forget_job(self, lease: Held) -> None:
        if self.holders.get(lease.job) == lease.attempt:
            del self.holders[lease.job]

    def settled(self, attempt: str) -> None:
        lease = self.settling.pop(attempt, None)
        if lease is None:
            return
        self._forget_job(lease)
        slot = self.slots.get(lease.slot)
        if slot and slot.state == "settling" and slot.held.attempt == attempt:
            self._idle(slot, self.now)

    def take_over(self, slot: Slot, worker: str, epoch: int) -> bool:
        if slot.state == "leased" and slot.held.worker not in (worker, ""):
            return False
        if slot.state == "adoptable":
            slot.state, slot.listed, slot.since_us = "leased", False, self.now
        slot.held.worker, slot.held.epoch, slot.held.asked = worker, epoch, None
        slot.held.expires_us = self.now + LEASE_US
        return True

    def renew(self, slot: Slot | None, lease: Held, worker: str) -> bool:
        if slot is None:
            if lease.attempt not in self.settling:
                return False
        elif slot.held.worker == worker:
            if slot.state == "adoptable":
                slot.state, slot.listed, slot.since_us = "leased", False, self.now
        elif slot.held.worker == "" and slot.state == "leased":
            slot.held.worker, slot.held.asked = worker, None
        else:
            return False
        lease.expires_us = self.now + LEASE_US
        return True

    # -- repair --------------------------------------------------------------------------------------------

    def _expiring(self) -> Iterator[Held]:
        yield from (slot.held for slot in self.slots.values() if slot.state == "leased")
        yield from self.settling.values()

    def is_expired(self, lease: Held) -> bool:
        return max(lease.expires_us, self.floor) <= self.now

    def expired(self, gap_us: int) -> list[str]:
        if self.ticked is not None and self.now - self.ticked > gap_us:
            self.floor = self.now + LEASE_US
        self.ticked = self.now
        found = [lease for lease in self._expiring() if self.is_expired(lease)]
        return sorted(lease.attempt for lease in found)

    def resolve(self, lease: Held, verdict: str) -> bool:
        """The caller has taken it from `expired`."""
        slot = self.slots.get(lease.slot)
        if lease.attempt in self.settling:
            waits = slot is not None and slot.state == "settling" and slot.held.attempt == lease.attempt
            if verdict == "adoptable" and not waits:
                return False
            del self.settling[lease.attempt]
            if verdict != "adoptable":
                self._forget_job(lease)
            if not waits:
                return True
        elif verdict != "adoptable":
            self._correct(lease, None)
            self._forget_job(lease)
        assert slot is not None
        if verdict == "free":
            self._idle(slot, self.now)
        else:
            slot.state, slot.since_us, slot.listed = verdict, self.now, verdict == "adoptable"
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
        if slot.state in ("leased", "adoptable"):
            self._correct(slot.held, None)
            self._forget_job(slot.held)
            slot.since_us = self.now
        slot.state = "quarantined"

    def free_slot(self, name: str) -> None:
        slot = self.slots.get(name)
        if slot and slot.state == "quarantined":
            self._idle(slot, slot.since_us)

    # -- servers ---------------------------------------------------------------------------------------------

    def _server(self, slot: Slot) -> Server:
        return self.servers[split_slot(slot.name)[0]]

    def _usable(self, server: Server, slot: Slot) -> bool:
        return not server.gone and server.on and split_slot(slot.name)[1] < server.slots

    def _of(self, server: str) -> list[Slot]:
        return [slot for slot in self.slots.values() if split_slot(slot.name)[0] == server]

    def _idle(self, slot: Slot, since_us: int) -> None:
        server = self._server(slot)
        slot.lease, slot.since_us, slot.listed = None, since_us, False
        if server.gone:
            del self.slots[slot.name]
            if not self._of(server.name):
                del self.servers[server.name]
            return
        slot.state = "free" if self._usable(server, slot) else "off"
        self._show(slot, server)

    def _show(self, slot: Slot, server: Server) -> None:
        slot.listed = slot.state == "adoptable" or (slot.state == "free" and server.rests_until <= self.now)

    def configure(self, name: str, slots: int, models: tuple[str, ...], desired: str, host: str) -> None:
        old = self.servers.get(name)
        new = Server(name, slots, tuple(sorted(models)), desired, host)
        if old is not None:
            new.rests_until, new.rests = old.rests_until, old.rests
            if old == new:
                return
        self.servers[name] = new
        for index in range(slots):
            self.slots.setdefault(f"{name}/{index}", Slot(f"{name}/{index}", "off", self.now))
        for slot in self._of(name):
            if slot.state in ("free", "off"):
                slot.state = "free" if self._usable(new, slot) else "off"
            self._show(slot, new)

    def forget(self, name: str) -> None:
        server = self.servers.get(name)
        if server is None or server.gone:
            return
        for slot in self._of(name):
            if slot.state in ("free", "off", "quarantined"):
                del self.slots[slot.name]
        server.gone, server.desired, server.slots = True, "off", 0
        if not self._of(name):
            del self.servers[name]

    def rest(self, name: str, us: int) -> None:
        server = self.servers[name]
        server.rests_until, server.rests = max(server.rests_until, self.now + us), True
        for slot in self._of(name):
            if slot.state == "free":
                slot.listed = False

    def end_rests(self) -> None:
        for server in self.servers.values():
            if server.rests and server.rests_until <= self.now:
                server.rests = False
                for slot in self._of(server.name):
                    if slot.state == "free" and not server.gone:
                        slot.listed = True

    # -- looking

    def waiting(self) -> dict[str, int]:
        return dict(Counter(waiting.model for waiting in self.line.values()))

    def states(self) -> dict[str, int]:
        return dict(Counter(slot.state for slot in self.slots.values()))
