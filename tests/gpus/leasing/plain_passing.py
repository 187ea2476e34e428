"""Passing over in plain Python: for a warm model, and because of an avoided or a preferred server."""

from __future__ import annotations

from collections.abc import Sequence

from tests.gpus.leasing.plain_line import PlainLine
from tests.gpus.leasing.plain_values import MAX_SKIPS, NEAR_SLOTS, NEAR_US, WALK, Server, Slot, Waiting


class PlainPassing(PlainLine):
    def _behind(
        self, band: int, models: Sequence[str], server: str, *, only_free: bool = False
    ) -> Waiting | None:
        """The first in every line that is not misplaced on the server, no further than eight deep; the best
        one."""
        lines: dict[tuple[int, str, str], list[Waiting]] = {}
        for waiting in sorted(self._ready_in(band), key=lambda w: (w.score, w.member)):
            if waiting.model in models:
                lines.setdefault((waiting.asked, waiting.model, waiting.tenant), []).append(waiting)
        firsts = (
            next(
                (one for one in line[:WALK] if not self._is_misplaced(one, server, only_free=only_free)), None
            )
            for line in lines.values()
        )
        return min((one for one in firsts if one), key=lambda w: (*self.rank(w), w.member), default=None)

    def _avoids(self, waiting: Waiting) -> str | None:
        serving = [s for s in self.servers.values() if s.on and not s.gone and waiting.model in s.models]
        return waiting.avoid if waiting.avoid and waiting.skips < MAX_SKIPS and len(serving) > 1 else None

    def _near(self, waiting: Waiting) -> str | None:
        """The server that it prefers still."""
        server = self.servers.get(waiting.near)
        if server is None or not server.on or server.gone or waiting.model not in server.models:
            return None
        is_late = waiting.skipped_us and self.now - waiting.skipped_us >= NEAR_US
        if waiting.near == waiting.avoid or waiting.skips >= MAX_SKIPS or is_late:
            return None
        return waiting.near

    def _free_slot_of(self, server: str, model: str) -> Slot | None:
        slots = [self.slots.get(f"{server}/{index}") for index in range(NEAR_SLOTS)]
        free = [slot for slot in slots if slot and slot.listed and slot.state == "free"]
        warm = [slot for slot in free if slot.warm == model]
        return warm[0] if warm else min(free, key=lambda slot: slot.since_us, default=None)

    def _is_misplaced(self, waiting: Waiting, server: str, *, only_free: bool = False) -> bool:
        """only_free: a server that it prefers counts only while a slot is free there."""
        if self._avoids(waiting) == server:
            return True
        near = self._near(waiting)
        if near is None or near == server:
            return False
        return not only_free or self._free_slot_of(near, waiting.model) is not None

    def _placed(self, head: Waiting, band: int, models: Sequence[str], server: str) -> Waiting | None:
        """The head, or one behind it, for a slot of this server."""
        avoids = self._avoids(head) == server
        near = self._near(head)
        if not avoids and near in (None, server):
            return head
        other = self._behind(band, models, server)
        if avoids:
            other = other or self._behind(band, models, server, only_free=True)
        else:
            if other and self._leads_too_far(other, head):
                other = None
            if not other and not self._free_slot_of(near or "", head.model):
                return head
        self._skip(head)
        return other

    def _skip(self, waiting: Waiting, *, has_turn: bool = True) -> None:
        if has_turn:
            waiting.skipped_us = waiting.skipped_us or self.now
        waiting.skips += 1

    def best(self, models: Sequence[str], server: str | None = None) -> tuple[int, Waiting] | None:
        for place, band in enumerate(self._bands_in_order()):
            head = self._head(band, models)
            if head and server:
                head = self._placed(head, band, models, server)
            if head:
                return place, head
        return None

    def _prefer_warm(
        self, ticket: Waiting, slot: Slot, server: Server, reported: Sequence[str] | None
    ) -> Waiting:
        warm = {slot.warm} if reported is None else set(reported)
        models = [model for model in server.models if model in warm]
        if not self.patience or ticket.model in warm or not models:
            return ticket
        if not self._may_wait(ticket) or self._near(ticket) == server.name:
            return ticket
        other = self._head(self.band_of(ticket), models)
        if not other or self._leads_too_far(other, ticket) or self._is_misplaced(other, server.name):
            return ticket
        own = [one for one in self._ready_in(self.band_of(other)) if one.tenant == other.tenant]
        first = min((one for one in own if one.model in server.models), key=self.own_order)
        if first is not other and other.tenant != ticket.tenant:
            if not self._may_wait(first):
                return ticket
            self._skip(first, has_turn=False)
        self._skip(ticket)
        return other

    def _may_wait(self, ticket: Waiting) -> bool:
        return ticket.skips < MAX_SKIPS and (
            not ticket.skipped_us or self.now - ticket.skipped_us < self.patience
        )

    def _leads_too_far(self, other: Waiting, ticket: Waiting) -> bool:
        most = (
            self.patience / 1_000_000
            + self.estimate(other.model, other.tenant) / self.rules[other.tenant].weight
        )
        return not self.fifo and self._tag(other) - self._tag(ticket) > most
