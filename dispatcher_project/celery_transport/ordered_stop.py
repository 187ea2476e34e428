"""The shutdown of a worker process: claims stop at once, runs get a grace period, and the process never
hangs.

Celery's warm shutdown waits for the threads without a limit, and a thread can't be killed. So a separate
thread follows the order of docs/reference/failures.md: drain, wait, interrupt, and finally end the process.

SIGTERM, SIGINT, SIGQUIT and SIGHUP all lead there. Celery's own handlers do not work with threads: for
SIGQUIT and for a second Ctrl-C they tell the pool to kill a job, which raises, and the process silently waits
for its longest run.

A deploy first starts a successor: the same command with the code that is installed now. Once it takes jobs,
systemd gets its pid (``MAINPID=``) and this process drains; if it does not become ready, this process
continues. Under `up` the supervisor starts the next process instead (supervisor/child.py).
"""

from __future__ import annotations

import contextlib
import os
import queue
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import structlog
from celery import signals
from celery.signals import worker_shutting_down
from celery.worker import state

from dispatcher_project.supervisor.guard import MARKER_VARIABLE
from dispatcher_project.supervisor.notify import READY, STOPPING, notify

WARM, COLD, REPLACED = "Warm", "Cold", "Replaced"
"""How a worker stops: with a grace period, without one, or with one after the next process has taken over."""


PIPE_VARIABLE = "DISPATCHER_PREDECESSOR_PIPE"
READY_SECONDS = 120.0
"""How long the next process may take until it takes jobs; after that it is ended, and the old one stays."""
_LOOK_SECONDS = 0.1
_NOTIFY_SECONDS = 5.0


def can_have_successor() -> bool:
    """Return True under systemd, which accepts a new main pid; `up` starts the next process itself."""
    return "NOTIFY_SOCKET" in os.environ and MARKER_VARIABLE not in os.environ


class Predecessor:
    """The process that started this one as its successor, if any. It waits until this one takes jobs."""

    def __init__(self) -> None:
        given = os.environ.pop(PIPE_VARIABLE, "")
        self._pipe = int(given) if given.isdecimal() else None

    def __bool__(self) -> bool:
        return self._pipe is not None

    def tell_ready(self) -> None:
        if self._pipe is not None:
            with contextlib.suppress(OSError):
                os.write(self._pipe, b"r")
                os.close(self._pipe)
            self._pipe = None


def start_successor(is_stopped: Callable[[], bool], *, ready_seconds: float = READY_SECONDS) -> bool:
    """Return True once the next process takes jobs and the service manager has its pid.

    is_stopped: asked while it starts; True ends it again.
    """
    reader, writer = os.pipe()
    os.set_inheritable(writer, True)
    try:
        process = subprocess.Popen(
            [sys.executable, *sys.orig_argv[1:]],
            env={**os.environ, PIPE_VARIABLE: str(writer)},
            pass_fds=(writer,),
        )
    except OSError as error:
        log.error("successor_not_started", error=str(error))
        os.close(reader)
        return False
    finally:
        os.close(writer)
    log.info("successor_started", pid=process.pid)
    try:
        if _is_ready(reader, time.monotonic() + ready_seconds, is_stopped) and notify(
            f"MAINPID={process.pid}\n{READY}", seconds=_NOTIFY_SECONDS
        ):
            return True
    finally:
        os.close(reader)
    process.kill()
    process.wait()
    log.error("successor_not_ready", pid=process.pid, exit_code=process.returncode)
    return False


def _is_ready(reader: int, until: float, is_stopped: Callable[[], bool]) -> bool:
    while time.monotonic() < until and not is_stopped():
        if select.select([reader], [], [], _LOOK_SECONDS)[0]:
            return os.read(reader, 1) == b"r"  # empty: it ended
    return False


def end_consumer() -> None:
    """End Celery's loop at its next turn; the worker ends once its threads have."""
    state.should_stop = os.EX_OK


def install_signal_handlers(*, hand_over: bool) -> None:
    """Replace Celery's signal handlers; call in the main thread. hand_over: SIGHUP starts the next
    process."""
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
"""Time for interrupted runs and the writer to end; after that the process exits."""
_SLICE_SECONDS = 0.05


class OrderedStop:
    """Stops a worker in order, from its own thread.

    drain: stops claims and hands polled runs over. busy: returns the number of current runs. interrupt: ends
    them. end_process: the last resort. replace: starts the next process; returns False if it does not become
    ready. end: ends the worker after its replacement. All are called from the thread, never from a signal
    handler.
    """

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
        """Releases resources that the next process needs, such as the health port."""
        self._last_seconds = LAST_SECONDS if last_seconds is None else last_seconds
        # a signal handler may interrupt anything, also itself: only SimpleQueue.put is safe there
        self._asked: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._ended = threading.Event()

    def install(self) -> None:
        signals.worker_shutting_down.connect(self.ask, weak=False)
        threading.Thread(target=self._run, name="ordered-stop", daemon=True).start()

    def ask(self, how: str = "Warm", **_: Any) -> None:
        """Request the stop; safe in a signal handler. how: WARM, COLD or REPLACED."""
        self._asked.put(how)

    def ended(self) -> None:
        """Note that the worker has ended on its own."""
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


log = structlog.get_logger(__name__)
