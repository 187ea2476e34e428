"""The dashboard's buttons: POST only, each calls one service.

Responses are for htmx and have no body, only two events: `toast` with the outcome, and `changed`, on which
the page reloads its live parts.
"""

from __future__ import annotations

import json

from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404
from django.views.decorators.http import require_POST

from admin_ui.actions.operations import LATER, actor
from admin_ui.dashboard.pages import require
from gpus.models import Pause
from gpus.protocol import DesiredState, slot_name
from gpus.registry import controls, quarantine
from gpus.registry.model_fields import RegistryRefused
from gpus.registry.registry import Registered
from jobs import ports
from jobs.models import Tenant
from jobs.operations.tenants import pause_tenant, resume_tenant

_PERMISSIONS = {
    Pause.Kind.SYSTEM: "gpus.add_pause",
    Pause.Kind.MODEL: "gpus.change_modelconfig",
    Pause.Kind.TENANT: "jobs.change_tenant",
}


@require_POST
def switch_server(request: HttpRequest, name: str) -> HttpResponse:
    """Set a server's desired state. POST field desired: on, draining or off."""
    require(request, "gpus.change_server")
    desired = request.POST.get("desired", "")
    if desired not in [state.value for state in DesiredState]:
        return _refuse(f"A server is on, draining or off, not {desired[:20]!r}.")
    real = ports.production_ports()
    done = controls.switch_server(name, DesiredState(desired), by=actor(request), leases=real.leases)
    return _message_of_server(name, done, f"{name}: set to {desired}.")


@require_POST
def set_slots(request: HttpRequest, name: str) -> HttpResponse:
    """Set a server's number of slots. POST field slots: the total, so that a double click counts once."""
    require(request, "gpus.change_server")
    slots = request.POST.get("slots", "")
    if not slots.isascii() or not slots.isdecimal() or len(slots) > 6:
        return _refuse(f"The number of slots is a whole number, not {slots[:20]!r}.")
    real = ports.production_ports()
    try:
        done = controls.set_slots(name, int(slots), by=actor(request), leases=real.leases)
    except RegistryRefused as refusal:
        return _refuse(str(refusal))
    return _message_of_server(name, done, f"{name}: {slots} slot{'' if slots == '1' else 's'}.")


@require_POST
def free_slot(request: HttpRequest, name: str, index: int) -> HttpResponse:
    """Take a slot out of quarantine, on the operator's word that no run is left on it."""
    require(request, "gpus.change_server")
    real = ports.production_ports()
    slot = slot_name(name, index)
    try:
        done = quarantine.free_slot(slot, by=actor(request), leases=real.leases, at=real.clock.now())
    except RegistryRefused as refusal:
        return _refuse(str(refusal))
    real.send_wakes(done.wakes)
    return _message(f"{slot} is free.", mirrored=done.mirrored)


@require_POST
def pause(request: HttpRequest) -> HttpResponse:
    """Pause the system, a model or a tenant.

    POST fields. kind: system, model or tenant; name: the model's name or the tenant's id; reason: free text.
    """
    kind, target, label = _target(request)
    reason = request.POST.get("reason", "").strip()
    by, real = actor(request), ports.production_ports()
    try:
        if isinstance(target, Tenant):
            done = pause_tenant(target, by=by, ports=real, reason=reason)
        else:
            done = controls.pause(kind, target, by=by, reason=reason, leases=real.leases)
    except RegistryRefused as refusal:
        return _refuse(str(refusal))
    real.send_wakes(done.wakes)
    return _message(f"{label}: {'paused' if done.changed else 'already paused'}.", mirrored=done.mirrored)


@require_POST
def resume(request: HttpRequest) -> HttpResponse:
    """End a pause. POST fields kind and name: see `pause`."""
    kind, target, label = _target(request)
    by, real = actor(request), ports.production_ports()
    if isinstance(target, Tenant):
        done = resume_tenant(target, by=by, ports=real)
    else:
        done = controls.resume(kind, target, by=by, leases=real.leases)
    real.send_wakes(done.wakes)
    return _message(f"{label}: {'resumed' if done.changed else 'was not paused'}.", mirrored=done.mirrored)


def _target(request: HttpRequest) -> tuple[Pause.Kind, str | Tenant, str]:
    """The kind, the model's name or the tenant, and the label for messages."""
    requested, name = request.POST.get("kind", ""), request.POST.get("name", "")
    if requested not in Pause.Kind.values:
        raise Http404
    kind = Pause.Kind(requested)
    require(request, _PERMISSIONS[kind])
    if kind is Pause.Kind.SYSTEM:
        return kind, "", "The whole system"
    if kind is Pause.Kind.MODEL:
        return kind, name, name
    if not name.isascii() or not name.isdecimal() or len(name) > 18:
        raise Http404
    tenant = get_object_or_404(Tenant, pk=int(name))
    return kind, tenant, tenant.name


def _message_of_server(name: str, done: Registered | None, text: str) -> HttpResponse:
    if done is None:
        return _refuse(f"No server is named {name}.")
    ports.production_ports().send_wakes(done.wakes)
    return _message(text, mirrored=done.mirrored)


def _message(text: str, *, mirrored: bool = True) -> HttpResponse:
    return _events(text if mirrored else f"{text} {LATER}", is_bad=not mirrored)


def _refuse(text: str) -> HttpResponse:
    return _events(text, is_bad=True)


def _events(text: str, *, is_bad: bool) -> HttpResponse:
    events = {"toast": {"text": text, "bad": is_bad}, "changed": None}
    return HttpResponse(status=204, headers={"HX-Trigger": json.dumps(events)})
