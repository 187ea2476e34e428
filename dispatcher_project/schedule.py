"""Beat: sends one tick per second, by the monotonic clock. The worker that gets it decides which sweeps are
due.

Celery's own scheduler uses the wall clock and stops when that is set back; this one has neither a schedule
nor a file. A lost tick is followed by the next one, and ticks don't accumulate: their queue is bounded, and a
second tick finds no sweep due. Sweeps and their periods: jobs/sweeps/registry.py.
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
"""A tick takes at most three seconds, also with a hanging broker; after this time the process hangs."""


def restart_watchdog() -> None:
    """Restart the watchdog: without another call within STUCK_SECONDS it writes the stacks of all threads to
    stderr and exits with status 1, so that the supervisor restarts the process, also without liveness checks
    (compose). The watchdog works while the interpreter is blocked.
    """
    faulthandler.dump_traceback_later(STUCK_SECONDS, exit=True, file=_STDERR)


def liveness_reporter() -> Callable[[], object]:
    """Return the function that reports liveness with each tick: to the supervisor and, if one is set, to the
    health port, which is opened here."""
    address = settings.DISPATCHER.health_port
    if not address:
        return lambda: notify(ALIVE)
    from dispatcher_project.celery_transport.health import Health, HealthPort, Loop, broker_answers

    loop = Loop()
    HealthPort(Health(loop, needs={"broker": broker_answers}), address).start(watchdog=False)

    def report() -> None:
        notify(ALIVE)
        loop.turn()

    return report


class TickScheduler(Scheduler):  # type: ignore[misc]
    """The scheduler of `celery beat` (setting `beat_scheduler`).

    send: publishes a tick; failures are ignored. report_alive: reports liveness to the supervisor. watchdog:
    restarts the watchdog.
    """

    def __init__(
        self,
        *args: Any,
        send: Callable[[], object] | None = None,
        report_alive: Callable[[], object] | None = None,
        watchdog: Callable[[], object] = restart_watchdog,
        clock: Callable[[], float] = time.monotonic,
        **kwargs: Any,
    ) -> None:
        hints = HintPublisher(lambda: self.app)
        self._send = send or (lambda: hints.wake_sweep("tick"))
        self._report_alive = report_alive
        self._watchdog = watchdog
        self._clock = clock
        self._due_at = clock()
        super().__init__(*args, **kwargs)

    def setup_schedule(self) -> None:
        """No schedule of Celery's own."""

    def tick(self, *_: Any, **__: Any) -> float:
        """Send a tick if due; return the seconds until the next one. Called by beat's loop."""
        now = self._clock()
        if now >= self._due_at:
            self._watchdog()
            self._report_alive = self._report_alive or liveness_reporter()
            self._report_alive()
            self._send()
            # after a pause send one tick, not all missed ones
            due_next = self._due_at + TICK_SECONDS
            self._due_at = due_next if due_next > now else now + TICK_SECONDS
            now = self._clock()
        return max(0.0, self._due_at - now)
