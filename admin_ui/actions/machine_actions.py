"""Admin actions on servers and models: close circuit breakers, switch all servers of a machine."""

from __future__ import annotations

from collections.abc import Iterable
from functools import wraps
from typing import Any

from django.contrib import messages
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse

from admin_ui.actions.operations import LATER, Action, actor, confirm_first, for_each
from admin_ui.dashboard.labels import age
from admin_ui.parts.typed_decorators import operation
from gpus.health.circuits import circuit_of, reset_circuit
from gpus.models import Server
from gpus.protocol import CircuitKind, CircuitState, DesiredState
from gpus.registry.controls import switch_machine
from gpus.registry.model_fields import RegistryRefused
from jobs import ports


def circuit_text(kind: CircuitKind, name: str, pool: str) -> str:
    """Describe the circuit of a server or model. One call to Redis, so for single pages, not for lists."""
    found = circuit_of(kind, name, pool, ports.production_ports().leases)
    if found is None:
        return "unknown: Redis does not answer"
    if found.state is CircuitState.CLOSED:
        return f"closed ({found.strikes} failures in a row)" if found.strikes else "closed"
    if found.state is CircuitState.HALF_OPEN:
        return f"half open: one job tries (opened {found.opens} times in a row)"
    return f"open: one job tries in {age(found.left_seconds)} (opened {found.opens} times in a row)"


def close_circuits(request: HttpRequest, kind: CircuitKind, names: Iterable[str]) -> None:
    """Close the circuits of the named servers or models, and report the counts."""
    real = ports.production_ports()

    def close(name: str) -> str:
        done = reset_circuit(kind, name, by=actor(request), leases=real.leases)
        real.send_wakes(done.wakes)
        return "closed" if done.changed else "already closed"

    for_each(request, names, close)
    messages.info(request, "The circuit opens again if the server or model still fails.")


def of_whole_machines(method: Action) -> Action:
    """Extend the selected servers to all servers of their machines, for the action and its confirmation."""

    @wraps(method)
    def act(page: Any, request: HttpRequest, queryset: QuerySet[Any]) -> HttpResponse | None:
        machines = _machines(queryset)
        if not machines:
            messages.warning(request, "None of the selected servers is part of a machine.")
            return None
        return method(page, request, Server.objects.filter(machine__in=machines).order_by("machine", "name"))

    return act


class MachineActions:
    """Mixin of `admin_ui.pages.servers.ServerPages`: actions on whole machines."""

    @operation("Whole machine: switch on", permissions=["change"])
    @of_whole_machines
    def switch_machines_on(self, request: HttpRequest, queryset: QuerySet[Server]) -> None:
        _switch(request, queryset, DesiredState.ON)

    @operation("Whole machine: drain", permissions=["change"])
    @of_whole_machines
    def drain_machines(self, request: HttpRequest, queryset: QuerySet[Server]) -> None:
        _switch(request, queryset, DesiredState.DRAINING)

    @operation("Whole machine: switch off", permissions=["change"])
    @of_whole_machines
    @confirm_first(
        "Switch whole machines off?",
        "All servers of the machines are listed below. Running jobs are stopped and return to the queue.",
        "Yes, switch off",
    )
    def switch_machines_off(self, request: HttpRequest, queryset: QuerySet[Server]) -> None:
        _switch(request, queryset, DesiredState.OFF)


def _switch(request: HttpRequest, servers: QuerySet[Server], desired: DesiredState) -> None:
    real = ports.production_ports()
    for machine in _machines(servers):
        try:
            done = switch_machine(machine, desired, by=actor(request), leases=real.leases)
        except RegistryRefused as refusal:  # the last server was removed after the confirmation page
            messages.error(request, str(refusal))
            continue
        real.send_wakes(done.wakes)
        messages.success(request, f"{machine}: {', '.join(done.servers)} set to {desired.value}.")
        if not done.mirrored:
            messages.warning(request, LATER)


def _machines(servers: QuerySet[Server]) -> list[str]:
    found = servers.order_by().values_list("machine", flat=True)
    return sorted({machine for machine in found if machine})
