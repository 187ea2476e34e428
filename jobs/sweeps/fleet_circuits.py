"""A circuit breaker per fleet, which guards sweeps against a hung Redis: a call that timed out opens the
fleet's circuit, and calls fail at once until a probe in the background is answered. So a hung node costs the
other fleets' sweeps one time-out."""

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
"""A call that failed after this time timed out; a refused connection fails sooner."""
PROBE_SECONDS = 1.0
"""Pause between two probes of a fleet with an open circuit."""


def with_fleet_circuits(ports: Ports) -> Ports:
    """Return the ports with a circuit breaker around each fleet's lease layer."""
    return replace(ports, leases=_FleetCircuits(ports).leases)


class _FleetCircuits:
    """Circuit breakers of all fleets: a circuit opens after a time-out and closes when a probe is
    answered."""

    def __init__(self, ports: Ports) -> None:
        self._ports = ports
        self._lock = threading.Lock()
        self._open: set[str] = set()
        self._answered_at: dict[str, float] = {}

    def leases(self, fleet: str) -> Leases:
        return cast(Leases, _GuardedLeases(fleet, self))

    def call(self, fleet: str, name: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method of the fleet's lease layer. Raises LeasingUnavailable if the circuit is open, and the
        exceptions of the method."""
        if fleet in self._open:
            raise LeasingUnavailable("Redis does not answer: the last call timed out")
        began = self._ports.clock.monotonic()
        try:
            answer = getattr(self._ports.leases(fleet), name)(*args, **kwargs)
        except LeasingUnavailable as error:
            if self._ports.clock.monotonic() - began >= HUNG_SECONDS:
                self._open_circuit(fleet, began, error)
            raise
        self._answered_at[fleet] = self._ports.clock.monotonic()
        return answer

    def _open_circuit(self, fleet: str, since: float, error: LeasingUnavailable) -> None:
        """Open the circuit, also of the fleets that have not answered since then: they may be on the same
        node. Those are probed at once."""
        with self._lock:
            unanswered = {other for other, at in self._answered_at.items() if at < since}
            opened = ({fleet} | unanswered) - self._open
            self._open |= opened
        log.warning("fleet_circuit_opened", fleet=fleet, error=str(error))
        for other in opened:
            self._probe_after(PROBE_SECONDS if other == fleet else 0.0, other)

    def _probe_after(self, seconds: float, fleet: str) -> None:
        try:
            self._ports.after(seconds, self._probe_of(fleet))
        except RuntimeError as error:  # no thread can be started: the next call of a sweep is the probe
            log.warning("fleet_probe_not_started", fleet=fleet, error=str(error))
            self._close_circuit(fleet)

    def _probe_of(self, fleet: str) -> Callable[[], None]:
        def probe() -> None:
            began = self._ports.clock.monotonic()
            try:
                self._ports.leases(fleet).generation()
            except Exception as error:  # whatever it is: the circuit must not stay open
                if self._ports.clock.monotonic() - began >= HUNG_SECONDS:
                    self._probe_after(PROBE_SECONDS, fleet)
                    return
                log.info("fleet_probe_refused", fleet=fleet, error=str(error))
            self._answered_at[fleet] = self._ports.clock.monotonic()
            self._close_circuit(fleet)

        return probe

    def _close_circuit(self, fleet: str) -> None:
        with self._lock:
            self._open.discard(fleet)
        log.info("fleet_circuit_closed", fleet=fleet)


class _GuardedLeases:
    """One fleet's lease layer behind its circuit breaker."""

    def __init__(self, fleet: str, circuits: _FleetCircuits) -> None:
        self._fleet, self._circuits = fleet, circuits

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            return self._circuits.call(self._fleet, name, *args, **kwargs)

        return call
