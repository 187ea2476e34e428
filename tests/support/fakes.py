"""Fakes: clocks, a Redis that does not answer, ports that record their calls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from gpus.errors import LeasingUnavailable
from gpus.leasing.clock import REDIS, ClockReport
from gpus.leasing.contract import Leases
from gpus.leasing.values import Wakes
from jobs.ports import Ports

START = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass
class ManualClock:
    """Time that only the test moves."""

    at: datetime = START
    elapsed: float = 0.0

    def now(self) -> datetime:
        return self.at

    def monotonic(self) -> float:
        return self.elapsed

    def move(self, seconds: float) -> None:
        self.at += timedelta(seconds=seconds)
        self.elapsed += seconds


@dataclass
class WrongClocks:
    """As if Redis' clock were that many seconds ahead of all others."""

    ahead: float = 3600.0
    learning: bool = False

    def report(self) -> ClockReport:
        return ClockReport({REDIS: self.ahead} if self.ahead else {})

    fresh_report = report

    def confirm_time(self) -> bool:
        return False

    def is_learning(self) -> bool:
        return self.learning


class AbsentLeases:
    """A Redis that does not answer."""

    def __getattr__(self, name: str) -> Any:
        def refuse(*args: Any, **kwargs: Any) -> Any:
            raise LeasingUnavailable("Redis is not there")

        return refuse


@dataclass
class PortCalls:
    """What services sent through their ports."""

    announced: list[str] = field(default_factory=list)
    callbacks: list[str] = field(default_factory=list)
    wakes: list[Wakes] = field(default_factory=list)


def make_ports(
    leases: Leases | None = None, *, clock: Any = None, calls: PortCalls | None = None, wake: bool = True
) -> Ports:
    """Without leases: a Redis that is away."""
    recorded = calls or PortCalls()
    layer: Any = leases or AbsentLeases()

    def send(wakes: Sequence[Wakes]) -> int:
        recorded.wakes.extend(wakes)
        return sum(w.count for w in wakes) if wake else 0

    return Ports(
        clock=clock or ManualClock(),
        leases=lambda fleet: layer,
        send_wakes=send,
        wake_callbacks=recorded.callbacks.extend,
        announce=recorded.announced.extend,
        after=lambda seconds, work: None,
    )
