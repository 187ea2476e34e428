"""What every benchmark is given: the options, the ground, and who takes part."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from verification.proving.terminal import say

from .contenders import Contender, Dispatcher, Scripted
from .ground import Ground
from .options import Options
from .peers import PEERS, RAW, Peer


@dataclass(slots=True)
class Suite:
    """skipped: whoever does not take part, and why."""

    options: Options
    ground: Ground
    skipped: dict[str, str] = field(default_factory=dict)

    def peers(self) -> list[Peer]:
        """Those wanted that can be measured here; why others can't is said once."""
        wanted = self.options.against
        found = []
        for name in PEERS if wanted is None else wanted:
            if why := PEERS[name].why_not():
                self.skip(name, why)
            else:
                found.append(PEERS[name])
        return found

    def contenders(self) -> list[Contender]:
        """Us, the raw limit, then the peers."""
        scripted: list[Contender] = [Scripted(self.ground, peer) for peer in (RAW, *self.peers())]
        return [Dispatcher(self.ground), *scripted]

    def skip(self, name: str, why: str) -> None:
        if self.skipped.get(name) != why:
            say(f"{name} is left out: {why}")
        self.skipped[name] = why

    @contextmanager
    def dispatcher(self, slots: int = 0, *, demo: bool = False, **environment: str) -> Iterator[Dispatcher]:
        """Ready, and ended afterwards. slots: of its one GPU server, 0 for none yet. demo: with up's own."""
        ours = Dispatcher(self.ground, environment=environment, demo=demo)
        try:
            ours.start(slots)
            yield ours
        finally:
            ours.stop()
