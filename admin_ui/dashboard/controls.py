"""Buttons of the dashboard: POST only, one service each, and a word about what came of it.

Answers are for htmx: nothing to put into the page, but two events, `said` for whoever clicked and `changed`,
upon which the page asks for its live parts again.
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
    """desired: on, draining or off."""
    require(request, "gpus.change_server")
    wanted = request.POST.get("desired", "")
    if wanted not in [state.value for state in DesiredState]:
        return _refuse(f"A server is on, draining or off, not {wanted[:20]!r}.")
    real = ports.production_ports()
    done = controls.switch_server(name, DesiredState(wanted), by=actor(request), leases=real.leases)
    return _message_of_server(name, done, f"{name}: {wanted}.")


@require_POST
def set_slots(request: HttpRequest, name: str) -> HttpResponse:
    """slots: how many, not how many more, so that a click that is sent twice counts once."""
    require(request, "gpus.change_server")
    wanted = request.POST.get("slots", "")
    if not wanted.isascii() or not wanted.isdecimal() or len(wanted) > 6:
        return _refuse(f"The number of slots is a whole number, not {wanted[:20]!r}.")
    real = ports.production_ports()
    try:
        done = controls.set_slots(name, int(wanted), by=actor(request), leases=real.leases)
    except RegistryRefused as refusal:
        return _refuse(str(refusal))
    return _message_of_server(name, done, f"{name}: {wanted} slot{'' if wanted == '1' else 's'}.")


@require_POST
def free_slot(request: HttpRequest, name: str, index: int) -> HttpResponse:
    """An operator's word that nothing runs on a slot in quarantine."""
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
    """kind: system, model or tenant. name: the model's, or the tenant's id. reason: why, for the others."""
    kind, whom, label = _target(request)
    reason = request.POST.get("reason", "").strip()
    by, real = actor(request), ports.production_ports()
    try:
        if isinstance(whom, Tenant):
            done = pause_tenant(whom, by=by, ports=real, reason=reason)
        else:
            done = controls.pause(kind, whom, by=by, reason=reason, leases=real.leases)
    except RegistryRefused as refusal:
        return _refuse(str(refusal))
    real.send_wakes(done.wakes)
    return _message(f"{label}: {'paused' if done.changed else 'was paused already'}.", mirrored=done.mirrored)


@require_POST
def resume(request: HttpRequest) -> HttpResponse:
    kind, whom, label = _target(request)
    by, real = actor(request), ports.production_ports()
    if isinstance(whom, Tenant):
        done = resume_tenant(whom, by=by, ports=real)
    else:
        done = controls.resume(kind, whom, by=by, leases=real.leases)
    real.send_wakes(done.wakes)
    return _message(f"{label}: {'goes on' if done.changed else 'was not paused'}.", mirrored=done.mirrored)


def _target(request: HttpRequest) -> tuple[Pause.Kind, str | Tenant, str]:
    """The kind, the model's name or the tenant, and what people call it."""
    wanted, name = request.POST.get("kind", ""), request.POST.get("name", "")
    if wanted not in Pause.Kind.values:
        raise Http404
    kind = Pause.Kind(wanted)
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
        return _refuse(f"There is no server {name}.")
    ports.production_ports().send_wakes(done.wakes)
    return _message(text, mirrored=done.mirrored)


def _message(text: str, *, mirrored: bool = True) -> HttpResponse:
    return _events(text if mirrored else f"{text} {LATER}", is_bad=not mirrored)


def _refuse(text: str) -> HttpResponse:
    return _events(text, is_bad=True)


def _events(text: str, *, is_bad: bool) -> HttpResponse:
    told = {"said": {"text": text, "bad": is_bad}, "changed": None}
    return HttpResponse(status=204, headers={"HX-Trigger": json.dumps(told)})
