"""Servers and their claimable slots, in plain Python."""

from __future__ import annotations

from gpus.protocol import split_slot
from tests.gpus.leasing.plain_passing import PlainPassing
from tests.gpus.leasing.plain_values import Server, Slot

IDLE = ("free", "off")


class PlainServers(PlainPassing):
    def __init__(self) -> None:
        super().__init__()
        self.slots: dict[str, Slot] = {}

    def _server(self, slot: Slot) -> Server:
        return self.servers[split_slot(slot.name)[0]]

    def _has_room(self, server: Server, slot: Slot) -> bool:
        others = sum(one is not slot and one.state not in IDLE for one in self._of(server.name))
        below = split_slot(slot.name)[1] < server.slots
        return not server.gone and server.on and below and others < server.slots

    def _arrange(self, server: Server) -> None:
        """Of the idle slots below the count the lowest are free, as many as the held ones leave."""
        if server.gone:
            return
        slots = sorted(self._of(server.name), key=lambda slot: split_slot(slot.name)[1])
        room = server.slots - sum(slot.state not in IDLE for slot in slots) if server.on else 0
        for slot in slots:
            if slot.state in IDLE and split_slot(slot.name)[1] >= server.slots:
                del self.slots[slot.name]
            elif slot.state in IDLE:
                was, slot.state = slot.state, "free" if room > 0 else "off"
                room -= 1
                if slot.state != was:
                    self._show(slot, server)

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
        slot.state = "off"
        self._arrange(server)

    def _show(self, slot: Slot, server: Server) -> None:
        slot.listed = slot.state == "adoptable" or (slot.state == "free" and server.rests_until <= self.now)

    def configure(self, name: str, slots: int, models: tuple[str, ...], desired: str, host: str) -> None:
        old = self.servers.get(name)
        new = Server(name, slots, tuple(sorted(models)), desired, host)
        if old is not None and not old.gone:
            new.rests_until, new.rests = old.rests_until, old.rests
            if old == new:
                return
        self.servers[name] = new
        for index in range(slots):
            self.slots.setdefault(f"{name}/{index}", Slot(f"{name}/{index}", "off", self.now))
        for slot in self._of(name):
            if slot.state in IDLE:
                slot.state = "off"
            self._show(slot, new)
        self._arrange(new)

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
