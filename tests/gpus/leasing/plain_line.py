"""The specification of the line in plain Python: without indexes, every query scans everything."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence

from gpus.protocol import Ticket
from tests.gpus.leasing.plain_values import (
    HEAD_START_US,
    LAG_JOBS,
    LAG_SECONDS,
    LETS_PASS,
    Band,
    Held,
    Rules,
    Server,
    Waiting,
)


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
        self.rules: dict[str, Rules] = defaultdict(Rules)
        self.full: set[str] = set()  # run as many as they may
        self._parked_since: dict[str, None] = {}  # in the order in which they were parked
        self.means: dict[tuple[str, str | None], float] = {}

    def push(self, ticket: Ticket) -> str:
        if ticket.job_id in self.holders:
            return "held"
        if (ticket.job_id, ticket.priority) in self.line:
            return "duplicate"
        score = ticket.place_us + (ticket.priority - 1) % 3 * HEAD_START_US
        avoid = ticket.avoid_server or ""
        waiting = Waiting(ticket.job_id, ticket.model, ticket.tenant, ticket.priority, score, avoid)
        waiting.near = ticket.near_server or ""
        if all(other.tenant != waiting.tenant for other in self.line.values()):
            self.begins_to_wait(waiting.tenant)
        self.line[waiting.key] = waiting
        band = self.band_of(waiting)
        if waiting.tenant not in self.parked_tenants():
            self._enter(band, len(self._ready_in(band)) == 1, waiting.model, waiting.tenant)
        self._take_turns(band, waiting.tenant)
        return "stands"

    def begins_to_wait(self, tenant: str) -> None:
        """It had no ticket."""

    def band_of(self, waiting: Waiting) -> int:
        """The ticket's actual band: no higher than the tenant's highest band."""
        return max(waiting.asked, self.rules[waiting.tenant].band)

    def _enter(self, band: int, is_first: bool, model: str, tenant: str) -> None:
        if is_first and band:
            allowance = LETS_PASS * self.estimate(model, tenant)
            self.bands[band].allowance = max(self.bands[band].allowance, allowance)

    def own_score(self, waiting: Waiting) -> int:
        """In its tenant's own order."""
        return waiting.score - (self.band_of(waiting) - waiting.asked) * 3 * HEAD_START_US

    def remove(self, key: tuple[str, int]) -> bool:
        waiting = self.line.get(key)
        if waiting is None:
            return False
        self._leave(waiting)
        self._take_turns(self.band_of(waiting), waiting.tenant)
        return True

    def set_paused(self, tenants: set[str]) -> None:
        """Released tenants first."""
        for tenant in [one for one in self._parked_since if one in self.paused - tenants]:
            self._change_parked(tenant, lambda one=tenant: self.paused.discard(one))
        for tenant in sorted(tenants - self.paused):
            self._change_parked(tenant, lambda one=tenant: self.paused.add(one))

    def apply_max_running(self, tenant: str, running: int) -> None:
        most = self.rules[tenant].most
        if most is not None and running >= most:
            self._change_parked(tenant, lambda: self.full.add(tenant))
        else:
            self._change_parked(tenant, lambda: self.full.discard(tenant))

    def parked_tenants(self) -> set[str]:
        return self.paused | self.full

    def _change_parked(self, tenant: str, change: Callable[[], None]) -> None:
        was = tenant in self.parked_tenants()
        change()
        if was == (tenant in self.parked_tenants()):
            return
        if was:
            del self._parked_since[tenant]
        else:
            self._parked_since[tenant] = None
        for number, band in enumerate(self.bands):
            ready = self._ready_in(number)
            own = [waiting for waiting in ready if waiting.tenant == tenant]
            if was and own:
                first = min(own, key=self.own_order)
                self._enter(number, len(own) == len(ready), first.model, tenant)
            elif not ready:
                band.allowance = max(0.0, band.allowance)
            self._take_turns(number, tenant)

    def grant(self, tenant: str, band: int) -> None:
        """The tickets move to the granted band, like those of a tenant that was idle."""
        before = self.rules[tenant].band
        touched = {max(asked, one) for asked in range(3) for one in (before, band)
                   if max(asked, before) != max(asked, band)}  # fmt: skip
        for number in touched:
            if tenant in self.bands[number].turn:
                self.bands[number].paid[tenant] = self.bands[number].turn.pop(tenant)
        # line by line, as each may be the one with which a band begins to wait
        lines: dict[tuple[int, str], list[Waiting]] = defaultdict(list)
        for waiting in self.line.values():
            if waiting.tenant == tenant:
                lines[waiting.asked, waiting.model].append(waiting)
        heads = sorted((min(one, key=self.own_order) for one in lines.values()), key=self.own_order)
        moved = {key for key in lines if max(key[0], before) != max(key[0], band)}
        counts = Counter(self.band_of(waiting) for waiting in self.ready())
        for asked in range(3):
            for head in heads:
                key = (head.asked, head.model)
                if head.asked != asked or key not in moved or tenant in self.parked_tenants():
                    continue
                old, new = max(asked, before), max(asked, band)
                counts[old] -= len(lines[key])
                if not counts[old]:
                    self.bands[old].allowance = max(0.0, self.bands[old].allowance)
                self._enter(new, not counts[new], head.model, tenant)
                counts[new] += len(lines[key])
        self.rules[tenant].band = band
        for number in range(3):
            self._take_turns(number, tenant)

    def _take_turns(self, number: int, tenant: str) -> None:
        """The tenant's tag is in `turn` while it has tickets and is not paused, else in `paid`."""
        band = self.bands[number]
        takes = tenant not in self.parked_tenants() and self._backlogged(number, tenant)
        if takes and tenant not in band.turn:
            band.turn[tenant] = max(band.virtual, band.paid.pop(tenant, 0.0))
            band.since[tenant] = self.now
        elif not takes and tenant in band.turn:
            band.paid[tenant] = band.turn.pop(tenant)

    def _leave(self, waiting: Waiting) -> None:
        del self.line[waiting.key]
        band = self.band_of(waiting)
        if waiting.tenant not in self.parked_tenants() and not self._ready_in(band):
            self.bands[band].allowance = max(0.0, self.bands[band].allowance)
        if all(other.tenant != waiting.tenant for other in self.line.values()):
            # no search finds it
            self._change_parked(waiting.tenant, lambda: self.full.discard(waiting.tenant))

    def _backlogged(self, band: int, tenant: str) -> bool:
        return any(w.tenant == tenant and self.band_of(w) == band for w in self.line.values())

    def ready(self) -> list[Waiting]:
        """Those that a slot may take."""
        parked = self.parked_tenants()
        return [waiting for waiting in self.line.values() if waiting.tenant not in parked]

    def _ready_in(self, band: int) -> list[Waiting]:
        return [waiting for waiting in self.ready() if self.band_of(waiting) == band]

    # -- the next ticket ---------------------------------------------------------------------------------

    def _is_due(self, band: int) -> bool:
        return band > 0 and self.bands[band].allowance <= 0

    def _bands_in_order(self) -> list[int]:
        filled = [band for band in range(3) if self._ready_in(band)]
        return sorted(filled, key=lambda band: (not self._is_due(band), band))

    def own_order(self, waiting: Waiting) -> tuple[int, str, str]:
        return self.own_score(waiting), f"{waiting.asked}{waiting.model}", waiting.member

    def _tag(self, waiting: Waiting) -> float:
        """The tenant's rank, if this is its first ticket."""
        return waiting.score if self.fifo else self.bands[self.band_of(waiting)].turn[waiting.tenant]

    def rank(self, waiting: Waiting) -> tuple[float, str, int, str, str]:
        return self._tag(waiting), waiting.tenant, *self.own_order(waiting)

    def _head(self, band: int, models: Sequence[str]) -> Waiting | None:
        """The first ticket of the next tenant: of all tickets, else of tickets for these models."""
        firsts: dict[tuple[str, str], Waiting] = {}
        for waiting in sorted(self._ready_in(band), key=self.own_order):
            firsts.setdefault((waiting.tenant, ""), waiting)
            firsts.setdefault((waiting.tenant, waiting.model), waiting)
        whole = [one for (_, model), one in firsts.items() if not model]
        if not whole:
            return None
        head = min(whole, key=lambda one: (self._tag(one), one.tenant))
        if head.model in models:
            return head
        served = [one for (_, model), one in firsts.items() if model in models]
        if not served:
            return None
        tenant = min(served, key=lambda one: (self._tag(one), one.tenant)).tenant
        return min((one for one in served if one.tenant == tenant), key=self.own_order)

    def overtakes(self, ticket: Waiting, models: Sequence[str]) -> bool:
        band = self.band_of(ticket)
        return self._is_due(band) and any(self._head(higher, models) for higher in range(band))

    def take(self, ticket: Waiting, overtakes: bool) -> tuple[float, frozenset[int]]:
        """Remove it from the line. Returns the charge in GPU-seconds, and the charged bands (shares.lua)."""
        number, charged_bands = self.band_of(ticket), set()
        self._leave(ticket)
        seconds = self.estimate(ticket.model, ticket.tenant)
        for lower in range(number + 1, 3):
            if not self._ready_in(lower):
                self.bands[lower].allowance = max(0.0, self.bands[lower].allowance - seconds)
            elif self.bands[lower].allowance > 0:
                self.bands[lower].allowance -= seconds
                charged_bands.add(lower)
        band = self.bands[number]
        if overtakes:
            band.allowance += LETS_PASS * seconds
            charged_bands.add(number)
        start = band.turn.pop(ticket.tenant)
        band.virtual = max(band.virtual, start)
        account = band.turn if self._backlogged(number, ticket.tenant) else band.paid
        weight = self.rules[ticket.tenant].weight
        start = max(start, band.virtual - (LAG_SECONDS + LAG_JOBS * seconds) / weight)
        account[ticket.tenant] = start + seconds / weight
        return seconds, frozenset(charged_bands)

    def estimate(self, model: str, tenant: str) -> float:
        return self.means.get((model, tenant), self.means.get((model, None), 1.0))

    def _correct(self, lease: Held, seconds: float | None) -> float:
        real = (self.now - lease.leased_us) / 1_000_000 if seconds is None else seconds
        if delta := real - lease.charged:
            self._correct_turn(lease, delta)
            for number in lease.charged_bands:
                own = self.bands[number]
                own.allowance += LETS_PASS * delta if number == lease.band else -delta
                if not self._ready_in(number):
                    own.allowance = max(0.0, own.allowance)
        lease.charged = real
        return real

    def _correct_turn(self, lease: Held, delta: float) -> None:
        band = self.bands[lease.band]
        account = band.turn if lease.tenant in band.turn else band.paid
        tag = account.get(lease.tenant, band.virtual)
        moved, floor = tag + delta / self.rules[lease.tenant].weight, min(tag, band.virtual)
        stood_since = account is band.turn and lease.leased_us >= band.since[lease.tenant]
        account[lease.tenant] = moved if stood_since else max(moved, floor)

    def waiting(self) -> dict[str, int]:
        return dict(Counter(waiting.model for waiting in self.ready()))

    def parked(self) -> dict[str, int]:
        return dict(Counter(w.model for w in self.line.values() if w.tenant in self.parked_tenants()))
