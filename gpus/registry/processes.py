"""The dispatcher's processes, as they say themselves that they live, judged by the database's clock alone;
and which key layout each fleet's index has: one is in use, and only processes that know it use that index.

A process of another layout renews, releases and settles what it holds, and does nothing else with the index.
It may learn of a switch a second late: the old index is closed in Redis before the new one opens. For that an
`IndexGate` works on an index of any layout, and touches only keys whose meaning no layout may change:
`generation`, `rebuild`, `ticking` and `expiry`.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta

import structlog
from django.conf import settings
from django.db.models import QuerySet
from django.db.models.functions import Now

from foundation.database import statements
from foundation.program import command_line
from gpus.errors import LeasingUnavailable
from gpus.leasing import keys
from gpus.leasing.connect import connect
from gpus.leasing.scripts import FAILURES, Client, Scripts
from gpus.models import FleetIndex, Process
from gpus.protocol import FIRST_LAYOUT

log = structlog.get_logger(__name__)

REMEMBER_SECONDS = 1.0
_all_rows = statements.Read(
    lambda: FleetIndex.objects.values_list("fleet", "layout", "next_layout", "switch").order_by()
)
MOST_ATTEMPTS = 100_000


@dataclass(frozen=True, slots=True)
class IndexState:
    """One fleet's. next_layout, switch: while its index is being switched, else None and empty."""

    layout: int = FIRST_LAYOUT
    next_layout: int | None = None
    switch: str = ""


def read_index_states() -> dict[str, IndexState]:
    """By fleet; one without a row has the first layout."""
    return {fleet: IndexState(*state) for fleet, *state in _all_rows()}


class Layouts:
    """What this process knows of the rows, a second old at most while the database answers.

    read: the rows; None for a world that has one layout only. layout: of this process; 0 for its code's.
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
        """Since when no process works in a fleet's index that is in use, monotonic seconds."""
        self._states: Mapping[str, IndexState] = {}
        self._read_at: float | None = None
        self._is_watched = False
        self._lock = threading.Lock()

    def watch(self) -> None:
        """From now on a thread of this process calls `refresh` every second: no other one has to wait for
        the database."""
        self._is_watched = True

    def refresh(self) -> None:
        """Never raises: without a database what was known last counts."""
        if self._read is None:
            return
        self._read_at = self._monotonic()
        try:
            self._states = self._read()
        except Exception as error:  # also a database that is not migrated yet
            log.warning("layouts_not_read", error=str(error).strip(), kind=type(error).__name__)

    def state(self, fleet: str) -> IndexState:
        if self._read is None:
            return IndexState(self.layout)
        self._refresh_if_old()
        return self._states.get(fleet, IndexState())

    def refusal(self, fleet: str) -> str:
        """Why this process may not use the fleet's index now, but as a holder of leases; empty if it may."""
        state = self.state(fleet)
        if state.layout == self.layout and state.next_layout is None:
            return ""
        if state.next_layout is not None:
            return f"the index of {fleet} is being switched from layout {state.layout} to {state.next_layout}"
        return (
            f"the index of {fleet} has layout {state.layout}, this process knows layout {self.layout}: "
            f"see `{command_line('index')}`"
        )

    def leads(self) -> bool:
        """Whether this process' layout is the one in use, of one fleet at least."""
        if self._read is None:
            return True
        self._refresh_if_old()
        states = list(self._states.values()) or [IndexState()]
        return any(state.layout == self.layout for state in states)

    def left(self) -> dict[str, str]:
        """Fleets whose index is being switched from our layout to another one, each with its switch."""
        return {
            fleet: state.switch
            for fleet, state in self._states.items()
            if state.layout == self.layout and state.next_layout is not None
        }

    def _refresh_if_old(self) -> None:
        at = self._read_at
        if at is not None and (self._is_watched or self._monotonic() - at < REMEMBER_SECONDS):
            return
        if self._lock.acquire(blocking=at is None):
            try:
                if self._read_at is at:
                    self.refresh()
            finally:
                self._lock.release()


@dataclass(frozen=True, slots=True)
class SignsOfLife:
    """closed_by: empty while the index is open, or gone. looked_seconds: since a sweep last looked for
    expired leases there; None: none ever did. renewed: attempts whose lease, or uncommitted end, was renewed
    less than a lease time ago."""

    closed_by: str
    looked_seconds: float | None
    renewed: tuple[str, ...]


class IndexGate:
    """One fleet's index of any layout, from outside.

    now_ms, monotonic: as for `Scripts`. Every method raises LeasingUnavailable and may be called again.
    """

    def __init__(
        self,
        client: Client,
        fleet: str,
        layout: int,
        *,
        now_ms: Callable[[], int] | None = None,
        monotonic: Callable[[], float] | None = None,
    ) -> None:
        self._scripts = Scripts(client, keys.prefix(fleet, layout), now_ms=now_ms, monotonic=monotonic)

    def close(self, by: str) -> None:
        """Nothing is claimed there any more, by processes of any version, until it is discarded. Leases are
        still renewed, released and settled there. A Redis that restarts forgets it: close it again."""
        self._scripts.run("close_generation", owner=by)

    def discard(self) -> None:
        """It is not whole, and not closed: whoever may use it rebuilds it from the database."""
        self._scripts.run("discard_generation")

    def signs(self) -> SignsOfLife:
        closed_by, looked_us, *renewed = self._scripts.run("signs_of_life", limit=MOST_ATTEMPTS)
        looked = float(looked_us) / 1e6 if looked_us else None
        return SignsOfLife(str(closed_by), looked, tuple(map(str, renewed)))


class IndexGates:
    """Those of one Redis, made when they are first asked for; a forked child makes its own."""

    def __init__(self, url: Callable[[], str]) -> None:
        self._url = url
        self._lock = threading.Lock()
        self._gates: dict[tuple[int, str, int], IndexGate] = {}

    def __call__(self, fleet: str, layout: int) -> IndexGate:
        """Raises LeasingUnavailable where a cluster does not answer."""
        which = (os.getpid(), fleet, layout)
        with self._lock:
            if which not in self._gates:
                try:
                    self._gates[which] = IndexGate(connect(self._url()), fleet, layout)
                except FAILURES as error:
                    raise LeasingUnavailable(f"Redis does not answer: {error}") from error
            return self._gates[which]


FORGET_AFTER = timedelta(days=1)


def silent_after() -> timedelta:
    return timedelta(seconds=settings.DISPATCHER.process_silent_seconds)


def living() -> QuerySet[Process]:
    return Process.objects.filter(beat_at__gt=Now() - silent_after())


def is_known_elsewhere(name: str, layout: int) -> bool:
    """Whether a process of this name lived lately whose layout is another one."""
    return Process.objects.filter(name=name).exclude(layout=layout).exists()


def lives_elsewhere(name: str, layout: int) -> bool:
    """Whether a process of this name lives whose layout is another one."""
    return living().filter(name=name).exclude(layout=layout).exists()


def beat(name: str, kind: str, layout: int, ready: Mapping[str, str], queues: Iterable[str] = ()) -> None:
    """ready: by fleet, the switch that this process has nothing against."""
    said = {
        "kind": kind,
        "layout": layout,
        "ready": dict(ready),
        "queues": "\n".join(sorted(queues)),
        "beat_at": Now(),
    }
    if not Process.objects.filter(name=name).update(**said):
        Process.objects.create(name=name, started_at=Now(), **said)
    # What is said to come was written before the database's clock was set back: who died before that would
    # live for as long as the step. It counts as said now; who lives says it again soon.
    Process.objects.filter(beat_at__gt=Now()).update(beat_at=Now())


def sign_off(name: str) -> None:
    Process.objects.filter(name=name).delete()


def forget_silent() -> None:
    """Those that ended without signing off, long ago."""
    Process.objects.filter(beat_at__lt=Now() - FORGET_AFTER).delete()
