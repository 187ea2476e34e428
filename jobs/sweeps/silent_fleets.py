"""Fleets whose Redis takes calls and does not answer: sweeps go past them at once.

A call that had to time out makes its fleet silent. Calls to a silent fleet are refused here, without waiting,
until a question in the background is answered. So a hung node costs the sweeps of all other fleets one
time-out, however many fleets it holds and however long it hangs.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import structlog

from gpus.errors import LeasingUnavailable
from gpus.leasing.connect import TIMEOUT_SECONDS
from gpus.leasing.contract import Leases
from jobs.ports import Ports

log = structlog.get_logger(__name__)

HUNG_SECONDS = TIMEOUT_SECONDS / 2
"""A call that failed after so long was not refused, it timed out."""
ASK_AGAIN_SECONDS = 1.0


def past_silent_fleets(ports: Ports) -> Ports:
    """The same ports, whose lease layers refuse at once while their Redis hangs."""
    return replace(ports, leases=_SilentFleets(ports).leases)


class _SilentFleets:
    def __init__(self, ports: Ports) -> None:
        self._ports = ports
        self._lock = threading.Lock()
        self._silent: set[str] = set()
        self._answered_at: dict[str, float] = {}

    def leases(self, fleet: str) -> Leases:
        return cast(Leases, _Watched(fleet, self))

    def call(self, fleet: str, name: str, *args: Any, **kwargs: Any) -> Any:
        """Raises what the method raises, and LeasingUnavailable for a silent fleet."""
        if fleet in self._silent:
            raise LeasingUnavailable("Redis does not answer: it did not the last time")
        began = self._ports.clock.monotonic()
        try:
            answer = getattr(self._ports.leases(fleet), name)(*args, **kwargs)
        except LeasingUnavailable as error:
            if self._ports.clock.monotonic() - began >= HUNG_SECONDS:
                self._mark_silent(fleet, began, error)
            raise
        self._answered_at[fleet] = self._ports.clock.monotonic()
        return answer

    def _mark_silent(self, fleet: str, since: float, error: LeasingUnavailable) -> None:
        """Its node may hold others, too: those that did not answer meanwhile are asked at the same time."""
        with self._lock:
            unheard = {other for other, at in self._answered_at.items() if at < since}
            found = ({fleet} | unheard) - self._silent
            self._silent |= found
        log.warning("fleet_silent", fleet=fleet, error=str(error))
        for other in found:
            self._probe_after(ASK_AGAIN_SECONDS if other == fleet else 0.0, other)

    def _probe_after(self, seconds: float, fleet: str) -> None:
        try:
            self._ports.after(seconds, self._probe_of(fleet))
        except RuntimeError as error:  # no thread can be started: the next sweep's call asks
            log.warning("silent_fleet_not_asked", fleet=fleet, error=str(error))
            self._mark_answering(fleet)

    def _probe_of(self, fleet: str) -> Callable[[], None]:
        def ask() -> None:
            began = self._ports.clock.monotonic()
            try:
                self._ports.leases(fleet).generation()
            except Exception as error:  # whatever it is: a fleet must not stay silent
                if self._ports.clock.monotonic() - began >= HUNG_SECONDS:
                    self._probe_after(ASK_AGAIN_SECONDS, fleet)
                    return
                log.info("fleet_refuses", fleet=fleet, error=str(error))
            self._answered_at[fleet] = self._ports.clock.monotonic()
            self._mark_answering(fleet)

        return ask

    def _mark_answering(self, fleet: str) -> None:
        with self._lock:
            self._silent.discard(fleet)
        log.info("fleet_asked_again", fleet=fleet)


class _Watched:
    """One fleet's lease layer, for sweeps."""

    def __init__(self, fleet: str, fleets: _SilentFleets) -> None:
        self._fleet, self._fleets = fleet, fleets

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            return self._fleets.call(self._fleet, name, *args, **kwargs)

        return call
