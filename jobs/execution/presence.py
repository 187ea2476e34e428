"""The presence of a process: writes its row (`gpus.models.Process`), and reads which key layout each index
has."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress

import structlog
from django.conf import settings
from django.db import DatabaseError, InterfaceError, connection

from foundation.ids import new_id
from gpus.models import Process
from gpus.registry import processes
from jobs.ports import Ports

log = structlog.get_logger(__name__)

STEP_SECONDS = 1.0
BEATS_IN_SILENCE = 3
"""Writes of the row within the silence after which a process counts as gone."""


def process_name() -> str:
    """Return a name that is unique to this process."""
    return f"{socket.gethostname()}:{os.getpid()}:{new_id()[-6:]}"


class Presence:
    """Writes the row of this process in a thread of its own, one step every second.

    kind: of the process. name: of a GPU worker the name of its attempts' rows.
    queues: returns the queues that the process consumes; shown to operators.
    ready: returns, by fleet, the index switches that need no further step of this process.
    on_layout_overlap: called each step while this process's layout is in use and processes of another one
    live.
    each_step: called each step.
    """

    def __init__(
        self,
        ports: Ports,
        kind: Process.Kind,
        *,
        name: str = "",
        queues: Callable[[], Collection[str]] = tuple,
        ready: Callable[[], Mapping[str, str]] = dict,
        on_layout_overlap: Callable[[], None] | None = None,
        each_step: Callable[[], None] = lambda: None,
    ) -> None:
        self.name = name or process_name()
        self._ports, self._kind, self._queues, self._ready = ports, kind, queues, ready
        self._on_layout_overlap, self._each_step = on_layout_overlap, each_step
        self._stopped = threading.Event()
        self._written_at: float | None = None
        self._written: Mapping[str, str] = {}
        self._has_overlap = False
        self._thread = threading.Thread(target=self._keep, name="presence", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._ports.layouts.watch()
        self._thread.start()

    def stop(self) -> None:
        """End the thread and delete the row, so that no other process waits until it counts as gone."""
        self._stopped.set()
        self._thread.join(2.0)
        with suppress(DatabaseError, InterfaceError):
            processes.sign_off(self.name)

    def step(self) -> None:
        """Read the layouts, and write the row if it is due or `ready` has changed. Raises DatabaseError."""
        self._each_step()
        self._ports.layouts.refresh()
        now, ready = self._ports.clock.monotonic(), self._ready()
        every = settings.DISPATCHER.process_silent_seconds / BEATS_IN_SILENCE
        if self._written_at is None or now - self._written_at >= every or ready != self._written:
            processes.record_heartbeat(
                self.name, self._kind, self._ports.layouts.layout, ready, self._queues()
            )
            self._written_at, self._written = now, ready
            self._has_overlap = (
                self._on_layout_overlap is not None
                and processes.live_processes().exclude(layout=self._ports.layouts.layout).exists()
            )
        if (
            self._has_overlap
            and self._on_layout_overlap is not None
            and self._ports.layouts.is_layout_in_use()
        ):
            self._on_layout_overlap()

    def _keep(self) -> None:
        self._try(processes.forget_silent)
        while True:
            self._try(self.step)
            if self._stopped.wait(STEP_SECONDS):
                break
        connection.close()

    def _try(self, work: Callable[[], None]) -> None:
        """Log an error and go on: most likely the database is away, and the next step retries."""
        try:
            work()
        except Exception as error:
            log.warning("process_row_not_written", error=str(error).strip(), kind=type(error).__name__)
            connection.close()
