"""What SIGTERM, SIGINT, SIGQUIT and SIGHUP do to a worker; all of them end in `OrderedStop`.

Celery's own handlers do not work with threads: the one for SIGQUIT, and for a second Ctrl-C, asks the pool to
kill a job, which raises, and the process then waits for its longest run without telling anybody.
"""

from __future__ import annotations

import os
import signal
from typing import Any

from celery.signals import worker_shutting_down
from celery.worker import state

WARM, COLD, REPLACED = "Warm", "Cold", "Replaced"
"""How a worker stops: with its grace, without it, or with it once the next process has taken over."""


def end_consumer() -> None:
    """Celery's loop sees it at its next turn, and the worker comes to its end when its threads have."""
    state.should_stop = os.EX_OK


def install(*, hand_over: bool) -> None:
    """Called in the main thread, after Celery has set its own. hand_over: SIGHUP starts the next process."""
    signal.signal(signal.SIGTERM, lambda number, _: _stop(number, WARM))
    signal.signal(signal.SIGQUIT, lambda number, _: _stop(number, COLD))
    signal.signal(signal.SIGINT, lambda number, _: _stop(number, WARM if _serves() else COLD))
    if hand_over:
        signal.signal(signal.SIGHUP, lambda number, _: _announce(number, REPLACED))


def _serves() -> bool:
    return state.should_stop is None or state.should_stop is False


def _stop(number: int, how: str) -> None:
    _announce(number, how)
    end_consumer()


def _announce(number: int, how: str) -> None:
    sent: dict[str, Any] = {"sig": signal.Signals(number).name, "how": how, "exitcode": os.EX_OK}
    worker_shutting_down.send(sender=None, **sent)
