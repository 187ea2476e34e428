"""Beat: one tick a second, by the monotonic clock; the worker that gets it knows which sweeps are due.

Celery's own scheduler goes by the wall clock and stops when that steps back; this one keeps no schedule and
no file. A tick that could not be sent is simply followed by the next one, and ticks never pile up: their
queue is bounded, and a second one under way finds nothing due. Sweeps and their periods:
jobs/sweeps/registry.py.
"""

from __future__ import annotations

import faulthandler
import time
from collections.abc import Callable
from typing import Any

from celery.beat import Scheduler
from django.conf import settings

from dispatcher_project.supervisor.notify import ALIVE, notify
from jobs.wakes import HintPublisher

TICK_SECONDS = 1.0
_STDERR = 2
STUCK_SECONDS = 20.0
"""A tick takes three seconds at most, whatever the broker does. After so long something hangs."""


def tick_or_end() -> None:
    """From now on this process has STUCK_SECONDS until it calls this again.

    Else it writes to stderr where its threads stand, and ends with status 1: what started it starts another,
    also where nobody hears what it says (compose). No Python thread measures that time, so a held interpreter
    does not stop it.
    """
    faulthandler.dump_traceback_later(STUCK_SECONDS, exit=True, file=_STDERR)


def say_alive() -> Callable[[], object]:
    """Return what beat calls with every tick: the sign for its supervisor and, where it has one, its health
    port, which is opened here."""
    address = settings.DISPATCHER.health_port
    if not address:
        return lambda: notify(ALIVE)
    from dispatcher_project.celery_transport.health import Health, HealthPort, Loop, broker_answers

    loop = Loop()
    HealthPort(Health(loop, needs={"broker": broker_answers}), address).start(watchdog=False)

    def say() -> None:
        notify(ALIVE)
        loop.turn()

    return say


class TickScheduler(Scheduler):  # type: ignore[misc]
    """What `celery beat` runs (setting `beat_scheduler`).

    send: publishes a tick; its outcome doesn't matter. say: that beat is alive, to whoever supervises it.
    promise: to be back in time, or to end."""

    def __init__(
        self,
        *args: Any,
        send: Callable[[], object] | None = None,
        say: Callable[[], object] | None = None,
        promise: Callable[[], object] = tick_or_end,
        clock: Callable[[], float] = time.monotonic,
        **kwargs: Any,
    ) -> None:
        hints = HintPublisher(lambda: self.app)
        self._send = send or (lambda: hints.wake_sweep("tick"))
        self._say = say
        self._promise = promise
        self._clock = clock
        self._due_at = clock()
        super().__init__(*args, **kwargs)

    def setup_schedule(self) -> None:
        """Nothing of Celery's own."""

    def tick(self, *_: Any, **__: Any) -> float:
        """Called by beat's loop; returns the seconds until it is due again."""
        now = self._clock()
        if now >= self._due_at:
            self._promise()
            self._say = self._say or say_alive()
            self._say()
            self._send()
            # after a standstill one tick is sent, not all that were missed
            due_next = self._due_at + TICK_SECONDS
            self._due_at = due_next if due_next > now else now + TICK_SECONDS
            now = self._clock()
        return max(0.0, self._due_at - now)
