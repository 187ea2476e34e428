"""The input of every benchmark: options, environment and contenders."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from verification.proving.terminal import say

from .contenders import Contender, Dispatcher, Scripted
from .environment import BenchEnvironment
from .options import Options
from .peers import PEERS, RAW, Peer


@dataclass(slots=True)
class Suite:
    """One run of the suite. skipped: contenders that do not take part, and why."""

    options: Options
    env: BenchEnvironment
    skipped: dict[str, str] = field(default_factory=dict)

    def peers(self) -> list[Peer]:
        """Return the requested peers that can be measured here; report once why others can't."""
        wanted = self.options.against
        found = []
        for name in PEERS if wanted is None else wanted:
            if why := PEERS[name].why_not():
                self.skip(name, why)
            else:
                found.append(PEERS[name])
        return found

    def contenders(self) -> list[Contender]:
        """Return the dispatcher, the raw limit, then the peers."""
        scripted: list[Contender] = [Scripted(self.env, peer) for peer in (RAW, *self.peers())]
        return [Dispatcher(self.env), *scripted]

    def skip(self, name: str, why: str) -> None:
        if self.skipped.get(name) != why:
            say(f"{name} is left out: {why}")
        self.skipped[name] = why

    @contextmanager
    def dispatcher(self, slots: int = 0, *, demo: bool = False, **environment: str) -> Iterator[Dispatcher]:
        """Yield a ready dispatcher, stopped afterwards. slots: of its one GPU server, 0 for none yet. demo:
        with the demo fleet of `up`."""
        ours = Dispatcher(self.env, environment=environment, demo=demo)
        try:
            ours.start(slots)
            yield ours
        finally:
            ours.stop()
