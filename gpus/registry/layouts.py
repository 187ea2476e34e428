"""The key layout of each fleet's index: its rows, and their cached copy in a process."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import structlog

from foundation.database import statements
from foundation.program import command_line
from gpus.leasing import keys
from gpus.models import FleetIndex
from gpus.protocol import FIRST_LAYOUT

log = structlog.get_logger(__name__)

KEEP_SECONDS = 1.0
_index_rows = statements.Read(
    lambda: FleetIndex.objects.values_list("fleet", "layout", "next_layout", "switch").order_by()
)


@dataclass(frozen=True, slots=True)
class IndexState:
    """Layout of one fleet's index. next_layout, switch (its id): during a switch, else None and empty."""

    layout: int = FIRST_LAYOUT
    next_layout: int | None = None
    switch: str = ""


def read_index_states() -> dict[str, IndexState]:
    """The index states by fleet; a fleet without a row has the first layout."""
    return {fleet: IndexState(*state) for fleet, *state in _index_rows()}


class Layouts:
    """The index states, cached for a second. One layout of a fleet's index is in use, and only processes of
    that layout use the index; others only renew, release and settle their leases.

    read: reads the rows; None: one layout only (tests). layout: of this process; 0: its code's. monotonic:
    clock in seconds.
    """

    def __init__(
        self,
        read: Callable[[], Mapping[str, IndexState]] | None = None,
        *,
        layout: int = 0,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.layout = layout or keys.LAYOUT
        self._read = read
        self._monotonic = monotonic
        self.abandoned_since: dict[str, float] = {}
        """Monotonic time since which no process uses a fleet's index in use, by fleet."""
        self._states: Mapping[str, IndexState] = {}
        self._read_at: float | None = None
        self._is_watched = False
        self._lock = threading.Lock()

    def watch(self) -> None:
        """Declare that a thread calls `refresh` every second, so that other threads never read the
        database."""
        self._is_watched = True

    def refresh(self) -> None:
        """Read the rows. Never raises: if the database does not answer, the last states remain."""
        if self._read is None:
            return
        self._read_at = self._monotonic()
        try:
            self._states = self._read()
        except Exception as error:  # also a database that is not migrated yet
            log.warning("key_layouts_not_read", error=str(error).strip(), kind=type(error).__name__)

    def state(self, fleet: str) -> IndexState:
        """The fleet's state, at most a second old while the database answers."""
        if self._read is None:
            return IndexState(self.layout)
        self._refresh_if_old()
        return self._states.get(fleet, IndexState())

    def refusal(self, fleet: str) -> str:
        """Why only lease holders of this process may use the fleet's index now, or "" if all may."""
        state = self.state(fleet)
        if state.layout == self.layout and state.next_layout is None:
            return ""
        if state.next_layout is not None:
            return f"the index of {fleet} is being switched from layout {state.layout} to {state.next_layout}"
        return (
            f"the index of {fleet} has layout {state.layout}, this process has layout {self.layout}: "
            f"see `{command_line('index')}`"
        )

    def is_layout_in_use(self) -> bool:
        """Whether this process' layout is in use for at least one fleet."""
        if self._read is None:
            return True
        self._refresh_if_old()
        states = list(self._states.values()) or [IndexState()]
        return any(state.layout == self.layout for state in states)

    def switches_away(self) -> dict[str, str]:
        """Switch ids by fleet, for fleets whose index is being switched from this process' layout to
        another."""
        return {
            fleet: state.switch
            for fleet, state in self._states.items()
            if state.layout == self.layout and state.next_layout is not None
        }

    def _refresh_if_old(self) -> None:
        at = self._read_at
        if at is not None and (self._is_watched or self._monotonic() - at < KEEP_SECONDS):
            return
        if self._lock.acquire(blocking=at is None):
            try:
                if self._read_at is at:
                    self.refresh()
            finally:
                self._lock.release()
