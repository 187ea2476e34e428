"""What the pages of servers and models show of their circuit breakers, and closing one."""

from __future__ import annotations

from collections.abc import Iterable

from django.contrib import messages
from django.http import HttpRequest

from admin_ui.actions.operations import actor, for_each
from admin_ui.dashboard.labels import age
from gpus.health.circuits import circuit_of, reset_circuit
from gpus.protocol import CircuitKind, CircuitState
from jobs import ports


def circuit_text(kind: CircuitKind, name: str, pool: str) -> str:
    """One call to Redis: for a page of its own, not for lists."""
    found = circuit_of(kind, name, pool, ports.production_ports().leases)
    if found is None:
        return "unknown: Redis does not answer"
    if found.state is CircuitState.CLOSED:
        return f"closed, {found.strikes} failures in a row" if found.strikes else "closed"
    if found.state is CircuitState.HALF_OPEN:
        return f"half open: one job tries (opened {found.opens} times in a row)"
    return f"open: one job tries in {age(found.left_seconds)} (opened {found.opens} times in a row)"


def close_circuits(request: HttpRequest, kind: CircuitKind, names: Iterable[str]) -> None:
    real = ports.production_ports()

    def close(name: str) -> str:
        done = reset_circuit(kind, name, by=actor(request), leases=real.leases)
        real.send_wakes(done.wakes)
        return "closed" if done.changed else "closed already"

    for_each(request, names, close)
    messages.info(request, "A server or model that still fails opens it again.")
