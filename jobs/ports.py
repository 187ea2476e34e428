"""What services need of the world, injected: tests and the simulator stand their own in its place."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import lru_cache

from django.conf import settings

from foundation.database.connection_pool import Lender
from gpus.health.health import PARALLEL_PROBES
from gpus.leasing.clock import AgreedClocks, ClockReport, ClockWatch, SharedClock, time_of
from gpus.leasing.contract import Leases
from gpus.leasing.index_gate import IndexGate, IndexGates
from gpus.leasing.values import Wakes
from gpus.protocol import Clock, SystemClock
from gpus.registry.layouts import Layouts, read_index_states
from gpus.runners.base import Transport
from gpus.runners.transport import HttpTransport
from jobs.reports.database_clock import database_time, last_told_time


def after_seconds(seconds: float, work: Callable[[], None]) -> None:
    timer = threading.Timer(seconds, work)
    timer.daemon = True
    timer.start()


@dataclass(frozen=True, slots=True, eq=False)
class Ports:
    """One value per process, equal to itself only.

    clock: time. leases: the lease layer of a fleet. send_wakes: best effort, never raises.
    wake_callbacks: tells the callbacks queue that these outbox rows are due; best effort, never raises.
    announce: tells listeners (streams, long polls) that these jobs changed; best effort, never raises.
    after: does a piece of work once, so many seconds later, in the background.
    database: a connection for what a block reads by `foundation.database.statements`.
    clocks: whether the clocks agree that a verdict which can't be taken back would be made by.
    transport: HTTP to GPU servers. parallel_probes: how many of them are asked for their health at once.
    layouts: which key layout each fleet's index has. index_gate: a fleet's index of any layout, from outside.
    """

    clock: Clock
    leases: Callable[[str], Leases]
    send_wakes: Callable[[Sequence[Wakes]], int]
    wake_callbacks: Callable[[Sequence[str]], None]
    announce: Callable[[Sequence[str]], None]
    after: Callable[[float, Callable[[], None]], None] = after_seconds
    database: Callable[[], AbstractContextManager[None]] = nullcontext
    clocks: ClockWatch = field(default_factory=AgreedClocks)
    transport: Transport = field(default_factory=HttpTransport)
    parallel_probes: int = PARALLEL_PROBES
    layouts: Layouts = field(default_factory=Layouts)
    index_gate: Callable[[str, int], IndexGate] = field(
        default_factory=lambda: IndexGates(lambda: str(settings.REDIS_URL))
    )


@lru_cache(maxsize=1)
def production_ports() -> Ports:
    """The real ones, one per process."""
    from gpus.leasing.store import redis_leases
    from jobs import wakes
    from jobs.events.announce import announce

    clock = SharedClock(
        SystemClock(),
        time_of(settings.REDIS_URL),
        database_time,
        last_told_time,
        tolerance_seconds=settings.DISPATCHER.clock_tolerance_seconds,
    )
    clock.keep_asking(after_seconds)
    layouts = Layouts(read_index_states)
    refusal = layouts.refusal
    return Ports(
        clock=clock,
        clocks=clock,
        leases=lambda fleet: redis_leases(settings.REDIS_URL, fleet, refusal),
        send_wakes=wakes.send_wakes,
        wake_callbacks=wakes.wake_callbacks,
        announce=announce,
        database=Lender().connection,
        layouts=layouts,
    )


def clock_report() -> ClockReport:
    """What this process knows of its clocks, at most half a minute old; asks nobody."""
    return production_ports().clocks.report()
