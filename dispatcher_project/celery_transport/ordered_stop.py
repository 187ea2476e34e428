"""How a worker process ends: claims stop at once, runs get their grace, and it never hangs.

Celery's own warm shutdown waits for the threads without a limit, and a thread can't be killed. So a thread
of ours follows the order of docs/failures.md beside it: drain, wait, interrupt, and at last end the process.

SIGTERM, SIGINT, SIGQUIT and SIGHUP all end there. Celery's own handlers do not work with threads: the one for
SIGQUIT, and for a second Ctrl-C, asks the pool to kill a job, which raises, and the process then waits for
its longest run without a message.
"""

from __future__ import annotations

import os
import queue
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import structlog
from celery import signals
from celery.signals import worker_shutting_down
from celery.worker import state

from dispatcher_project.celery_transport.successor import start_successor
from dispatcher_project.supervisor.notify import STOPPING, notify

WARM, COLD, REPLACED = "Warm", "Cold", "Replaced"
"""How a worker stops: with its grace, without it, or with it once the next process has taken over."""


def end_consumer() -> None:
    """Celery's loop sees it at its next turn, and the worker comes to its end when its threads have."""
    state.should_stop = os.EX_OK


def install_signal_handlers(*, hand_over: bool) -> None:
    """Called in the main thread, after Celery has set its own. hand_over: SIGHUP starts the next process."""
    signal.signal(signal.SIGTERM, lambda number, _: _on_signal(number, WARM))
    signal.signal(signal.SIGQUIT, lambda number, _: _on_signal(number, COLD))
    signal.signal(signal.SIGINT, lambda number, _: _on_signal(number, WARM if _serves() else COLD))
    if hand_over:
        signal.signal(signal.SIGHUP, lambda number, _: _announce(number, REPLACED))


def _serves() -> bool:
    return state.should_stop is None or state.should_stop is False


def _on_signal(number: int, how: str) -> None:
    _announce(number, how)
    end_consumer()


def _announce(number: int, how: str) -> None:
    sent: dict[str, Any] = {"sig": signal.Signals(number).name, "how": how, "exitcode": os.EX_OK}
    worker_shutting_down.send(sender=None, **sent)


log = structlog.get_logger(__name__)

LAST_SECONDS = 12.0
"""What interrupted runs and the writer have to come to an end, before the process just ends."""
_SLICE_SECONDS = 0.05


class OrderedStop:
    """drain: stops claims and hands polled runs over; busy: runs in hand; interrupt: lets go of the rest;
    end_process: the last resort; replace: starts the next process, False if that does not come up; end: ends
    the worker that was replaced. All are called from this thread, never from a signal handler."""

    def __init__(
        self,
        *,
        grace_seconds: float,
        drain: Callable[[], None] = lambda: None,
        busy: Callable[[], int] = lambda: 0,
        interrupt: Callable[[], None] = lambda: None,
        end_process: Callable[[int], Any] = os._exit,
        replace: Callable[[Callable[[], bool]], bool] = start_successor,
        end: Callable[[], None] = end_consumer,
        last_seconds: float | None = None,
    ) -> None:
        self._grace_seconds = grace_seconds
        self._drain = drain
        self._busy = busy
        self._interrupt = interrupt
        self._end_process = end_process
        self._replace = replace
        self._end = end
        self.draining = False
        self.on_replaced: Callable[[], None] = lambda: None
        """Lets go of what the next process waits for."""
        self._last_seconds = LAST_SECONDS if last_seconds is None else last_seconds
        # a signal handler may interrupt anything, also itself: only SimpleQueue.put is safe there
        self._asked: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._ended = threading.Event()

    def install(self) -> None:
        signals.worker_shutting_down.connect(self.ask, weak=False)
        threading.Thread(target=self._run, name="ordered-stop", daemon=True).start()

    def ask(self, how: str = "Warm", **_: Any) -> None:
        """Safe in a signal handler. how: WARM, COLD or REPLACED."""
        self._asked.put(how)

    def ended(self) -> None:
        """The worker came to its end by itself."""
        self._ended.set()

    def _run(self) -> None:
        how = self._asked.get()
        while how == REPLACED and not self._replace(self._is_asked_more):
            how = self._asked.get()
        self.draining = True
        if how == REPLACED:
            self._try(self.on_replaced)
            self._end()
        else:
            notify(STOPPING)
        log.info("worker_draining", how=how, busy=self._busy())
        self._try(self._drain)
        if not self._wait_idle(0.0 if how == COLD else self._grace_seconds):
            log.warning("worker_interrupts_runs", busy=self._busy())
            self._try(self._interrupt)
        if not self._ended.wait(self._last_seconds):
            log.error("worker_ended_by_force", busy=self._busy())
            self._end_process(1)

    def _wait_idle(self, seconds: float) -> bool:
        until = time.monotonic() + seconds
        while self._busy() and not self._ended.is_set():
            if time.monotonic() >= until or self._asked_cold():
                return False
            self._ended.wait(_SLICE_SECONDS)
        return True

    def _asked_cold(self) -> bool:
        try:
            return self._asked.get_nowait() == COLD
        except queue.Empty:
            return False

    def _is_asked_more(self) -> bool:
        return not self._asked.empty()

    def _try(self, step: Callable[[], None]) -> None:
        try:
            step()
        except Exception:
            log.exception("worker_stop_step_failed")
