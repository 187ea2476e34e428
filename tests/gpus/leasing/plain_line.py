"""What the scripts mean by the line, in plain Python: no index, every question looks at everything."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from gpus.protocol import Ticket

HEAD_START_US, LEASE_US = 60_000_000, 15_000_000
BAND_WAITS, MAX_SKIPS, WALK = 15, 8, 8


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

    @property
    def key(self) -> tuple[str, int]:
        return self.job, self.priority


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


class PlainLine:
    """The line of one pool. Times in microseconds."""

    def __init__(self) -> None:
        self.now = 0
        self.fifo, self.patience = False, 30_000_000
        self.servers: dict[str, Server] = {}
        self.line: dict[tuple[str, int], Waiting] = {}  # a job may have tickets of several priorities
        self.paused: set[str] = set()
        self.bands = [Band(), Band(), Band()]
        self.holders: dict[str, str] = {}  # attempt by job: leased or settling
        self.weights: dict[str, float] = {}
        self.means: dict[tuple[str, str | None], float] = {}

    def push(self, ticket: Ticket) -> str:
        if ticket.job_id in self.holders:
            return "held"
        if (ticket.job_id, ticket.priority) in self.line:
            return "duplicate"
        score = ticket.place_us + (ticket.priority - 1) % 3 * HEAD_START_US
        avoid = ticket.avoid_server or ""
        waiting = Waiting(ticket.job_id, ticket.model, ticket.tenant, ticket.priority, score, avoid)
        self.line[waiting.key] = waiting
        self._take_turns(waiting.band, waiting.tenant)
        return "stands"

    def remove(self, key: tuple[str, int]) -> bool:
        waiting = self.line.get(key)
        if waiting is None:
            return False
        self._leave(waiting)
        self._take_turns(waiting.band, waiting.tenant)
        return True

    def set_paused(self, tenants: set[str]) -> None:
        changed, self.paused = self.paused ^ tenants, tenants
        for number, band in enumerate(self.bands):
            for tenant in changed:
                self._take_turns(number, tenant)
            if not self._has_ready(number):
                band.passed = 0

    def _take_turns(self, number: int, tenant: str) -> None:
        """The tenant's tag stands in `turn` while it has tickets and is not paused, else in `paid`."""
        band = self.bands[number]
        takes = tenant not in self.paused and self._backlogged(number, tenant)
        if takes and tenant not in band.turn:
            band.turn[tenant] = max(band.virtual, band.paid.pop(tenant, 0.0))
        elif not takes and tenant in band.turn:
            band.paid[tenant] = band.turn.pop(tenant)

    def _leave(self, waiting: Waiting) -> None:
        del self.line[waiting.key]
        if not self._has_ready(waiting.band):
            self.bands[waiting.band].passed = 0

    def _backlogged(self, band: int, tenant: str) -> bool:
        return any(w.tenant == tenant and w.band == band for w in self.line.values())

    def ready(self) -> list[Waiting]:
        """Those that a slot may take."""
        return [waiting for waiting in self.line.values() if waiting.tenant not in self.paused]

    def _has_ready(self, band: int) -> bool:
        return any(waiting.band == band for waiting in self.ready())

    # -- who is next ---------------------------------------------------------------------------------

    def _bands_in_order(self) -> list[int]:
        filled = [band for band in range(3) if self._has_ready(band)]
        return sorted(filled, key=lambda band: (self.bands[band].passed < BAND_WAITS, band))

    def _rank(self, waiting: Waiting) -> tuple[float, str, int, str, str]:
        first = waiting.score if self.fifo else self.bands[waiting.band].turn[waiting.tenant]
        return first, waiting.tenant, waiting.score, waiting.model, waiting.member

    def _heads(self, band: int, models: Sequence[str], fits: Callable[[Waiting], bool]) -> list[Waiting]:
        """The first fitting ticket of every (model, tenant), no further than eight deep; best one first."""
        lines: dict[tuple[str, str], list[Waiting]] = {}
        for waiting in sorted(self.ready(), key=lambda w: (w.score, w.member)):
            if waiting.band == band and waiting.model in models:
                lines.setdefault((waiting.model, waiting.tenant), []).append(waiting)
        heads = (next(filter(fits, line[:WALK]), None) for line in lines.values())
        return sorted((head for head in heads if head), key=self._rank)

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

    def take(self, ticket: Waiting) -> float:
        """Out of the line; the charge in GPU-seconds."""
        for lower in range(ticket.band + 1, 3):
            if self._has_ready(lower):
                self.bands[lower].passed += 1
        band = self.bands[ticket.band]
        band.passed = 0
        self._leave(ticket)
        seconds = self.estimate(ticket.model, ticket.tenant)
        start = band.turn.pop(ticket.tenant)
        band.virtual = max(band.virtual, start)
        account = band.turn if self._backlogged(ticket.band, ticket.tenant) else band.paid
        account[ticket.tenant] = start + seconds / self.weights.get(ticket.tenant, 1.0)
        return seconds

    def estimate(self, model: str, tenant: str) -> float:
        return self.means.get((model, tenant), self.means.get((model, None), 1.0))

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

    def waiting(self) -> dict[str, int]:
        return dict(Counter(waiting.model for waiting in self.ready()))

    def parked(self) -> dict[str, int]:
        return dict(Counter(w.model for w in self.line.values() if w.tenant in self.paused))
