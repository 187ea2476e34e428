"""A cooperative scheduler: processes of fibers that run in turn by virtual time, in one thread.

A fiber runs until it reaches a *point* (every call of the database, Redis or a GPU server, every wait). There
it sleeps a little virtual time, so that others run in between; there its process can be killed or stopped.
The order of fibers follows from the seed alone.
"""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from greenlet import getcurrent, greenlet

START = datetime(2025, 12, 31, 23, 59, tzinfo=UTC)
"""A minute before midnight, when quotas start again."""
HISTORY_LINES = 20_000


class Killed(BaseException):
    """SIGKILL: the code that runs never sees it, its fibers just end."""


class Fiber(greenlet):
    """A thread of a simulated process. process: its owner. turn: number of its current wait; earlier wake-ups
    are void."""

    process: Process
    turn: int = 0


@dataclass(eq=False, slots=True)
class Process:
    """A simulated process.

    skew_seconds: of its wall clock. disturbed_at: when it was first killed, stopped or cut off. held: fibers
    that came due while it was stopped. chance: generator of its step durations; None: the shared one."""

    name: str
    skew_seconds: float = 0.0
    alive: bool = True
    disturbed_at: float | None = None
    died_at: float | None = None
    stopped: bool = False
    dies_after: int = 0
    """Points until it is killed; 0: it is not."""
    stops_after: int = 0
    """Points until it is stopped; 0: it is not."""
    fibers: dict[Fiber, None] = field(default_factory=dict)
    held: list[tuple[Fiber, int]] = field(default_factory=list)
    chance: random.Random | None = None

    @property
    def is_healthy(self) -> bool:
        """True if the process lives, is not stopped, and has no planned death or stop."""
        return self.alive and not (self.stopped or self.dies_after or self.stops_after)


class Scheduler:
    """`now`: virtual seconds since START. point_seconds: the longest step without a fault."""

    def __init__(self, seed: int, *, point_seconds: float = 0.004) -> None:
        self.now = 0.0
        self.points = 0
        self.history: deque[tuple[float, str, str]] = deque(maxlen=HISTORY_LINES)
        self._chance = random.Random(f"{seed} steps")
        self._point_seconds = point_seconds
        self._heap: list[tuple[float, int, Fiber, int]] = []
        self._count = 0
        self._until = 0.0
        self._hub = getcurrent()

    # -- processes -------------------------------------------------------------------------------------

    def spawn(self, process: Process, work: Callable[[], Any]) -> None:
        """Start a fiber of a living process; work of a dead one is dropped."""
        if not process.alive:
            return
        fiber = Fiber(self._body(work), parent=self._hub)
        fiber.process = process
        process.fibers[fiber] = None
        self._wake(fiber, self.now)

    def kill(self, process: Process) -> None:
        """End a process between two points. Raises Killed if called by one of its fibers."""
        if not process.alive:
            return
        process.alive = False
        process.died_at = self.now
        self.mark_disturbed(process)
        self.note(process.name, "killed")
        current = getcurrent()
        for fiber in list(process.fibers):
            if fiber is not current and fiber:  # a fiber that has not begun would raise it here
                fiber.parent = current
                fiber.throw(Killed)
        process.held.clear()
        if isinstance(current, Fiber) and current.process is process:
            raise Killed

    def stop(self, process: Process) -> None:
        """SIGSTOP: its fibers stop, its clocks go on."""
        process.stopped = True
        self.mark_disturbed(process)
        self.note(process.name, "stopped")

    def mark_disturbed(self, process: Process) -> None:
        """From now on the process may have lost its leases."""
        if process.disturbed_at is None:
            process.disturbed_at = self.now

    def resume(self, process: Process) -> None:
        """Continue a stopped process: its fibers are scheduled for now."""
        if process.stopped and process.alive:
            self.note(process.name, "goes on")
        process.stopped = False
        held, process.held = process.held, []
        for fiber, turn in held:
            self._push(self.now, fiber, turn)

    # -- for fibers ------------------------------------------------------------------------------------

    def current(self) -> Process | None:
        """The process of the running fiber; None: the simulator itself, whose calls are not points."""
        fiber = getcurrent()
        return fiber.process if isinstance(fiber, Fiber) else None

    def point(self, what: str) -> None:
        """Begin a step: others run in between, and the process may die here."""
        fiber = getcurrent()
        if not isinstance(fiber, Fiber):
            return
        process = fiber.process
        self.points += 1
        self.history.append((self.now, process.name, what))
        if not process.alive:
            raise Killed
        if process.dies_after:
            process.dies_after -= 1
            if not process.dies_after:
                self.kill(process)
        if process.stops_after:
            process.stops_after -= 1
            if not process.stops_after:
                self.stop(process)
        chance = process.chance or self._chance
        self._sleep_until(self.now + chance.random() * self._point_seconds, fiber)

    def sleep(self, seconds: float) -> None:
        self._sleep_until(self.now + max(0.0, seconds), self._fiber())

    def _sleep_until(self, at: float, fiber: Fiber) -> None:
        """A fiber that would be next anyway goes on without a switch. Fibers due at the same moment run in
        order of registration."""
        fiber.turn += 1
        if at <= self._until and (not self._heap or at < self._heap[0][0]):
            process = fiber.process
            if process.alive and not process.stopped:
                self.now = at
                return
        self._push(at, fiber, fiber.turn)
        self._hub.switch()

    def note(self, actor: str, what: str) -> None:
        self.history.append((self.now, actor, what))

    # -- the hub ---------------------------------------------------------------------------------------

    def run(self, until: float) -> None:
        """Run all fibers until this moment."""
        self._until = until
        while self._heap and self._heap[0][0] <= until:
            at, _, fiber, turn = heapq.heappop(self._heap)
            if fiber.dead or fiber.turn != turn or not fiber.process.alive:
                continue
            if fiber.process.stopped:
                fiber.process.held.append((fiber, turn))
                continue
            self.now = max(self.now, at)
            fiber.parent = self._hub
            fiber.switch()
        self.now = until

    def end(self) -> None:
        """Unwind all fibers."""
        for process in dict.fromkeys(entry[2].process for entry in self._heap):
            self.kill(process)
        self._heap.clear()

    def _body(self, work: Callable[[], Any]) -> Callable[[], None]:
        def body() -> None:
            fiber = self._fiber()
            try:
                work()
            except Killed:
                pass
            finally:
                fiber.process.fibers.pop(fiber, None)

        return body

    def _fiber(self) -> Fiber:
        fiber = getcurrent()
        if not isinstance(fiber, Fiber):
            raise RuntimeError("only a fiber can wait")
        return fiber

    def _wake(self, fiber: Fiber, at: float) -> None:
        self._push(at, fiber, fiber.turn)

    def _push(self, at: float, fiber: Fiber, turn: int) -> None:
        self._count += 1
        heapq.heappush(self._heap, (at, self._count, fiber, turn))


class Event:
    """`threading.Event` for fibers."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._set = False
        self._waiting: list[tuple[Fiber, int]] = []

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        self._set = True
        waiting, self._waiting = self._waiting, []
        for fiber, turn in waiting:
            self._scheduler._push(self._scheduler.now, fiber, turn)

    def clear(self) -> None:
        self._set = False

    def wait(self, seconds: float | None = None) -> bool:
        """Return whether it is set. seconds: None: wait until it is."""
        if not self._set:
            fiber = self._scheduler._fiber()
            fiber.turn += 1
            self._waiting.append((fiber, fiber.turn))
            if seconds is not None:
                self._scheduler._wake(fiber, self._scheduler.now + max(0.0, seconds))
            self._scheduler._hub.switch()
        return self._set


class VirtualClock:
    """A process' own clock (`gpus.protocol.Clock`)."""

    def __init__(self, scheduler: Scheduler, process: Process) -> None:
        self._scheduler, self._process = scheduler, process

    def now(self) -> datetime:
        return START + timedelta(seconds=self._scheduler.now + self._process.skew_seconds)

    def monotonic(self) -> float:
        return 1000.0 + self._scheduler.now
