"""Buttons of the dashboard: POST only, one service each, and a word about what came of it.

Answers are for htmx: nothing to put into the page, but two events, `said` for whoever clicked and `changed`,
upon which the page asks for its live parts again.
"""

from __future__ import annotations

import json

from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404
from django.views.decorators.http import require_POST

from admin_ui.operating import actor
from gpus.models import Pause
from gpus.protocol import DesiredState
from gpus.services import controls
from gpus.services.model_fields import RegistryRefused
from gpus.services.registry import Registered
from jobs.models import Tenant
from jobs.services import ports

_PERMISSIONS = {
    Pause.Kind.SYSTEM: "gpus.add_pause",
    Pause.Kind.MODEL: "gpus.change_modelconfig",
    Pause.Kind.TENANT: "jobs.change_tenant",
}
_LATER = " Redis does not answer now: it takes effect once Redis is back."


@require_POST
def switch_server(request: HttpRequest, name: str) -> HttpResponse:
    """desired: on, draining or off."""
    _require(request, "gpus.change_server")
    wanted = request.POST.get("desired", "")
    if wanted not in [state.value for state in DesiredState]:
        return _refuse(f"A server is on, draining or off, not {wanted[:20]!r}.")
    real = ports.production_ports()
    done = controls.switch_server(name, DesiredState(wanted), by=actor(request), leases=real.leases)
    return _told_of_server(name, done, f"{name}: {wanted}.")


@require_POST
def set_slots(request: HttpRequest, name: str) -> HttpResponse:
    """slots: how many, not how many more, so that a click that is sent twice counts once."""
    _require(request, "gpus.change_server")
    wanted = request.POST.get("slots", "")
    if not wanted.isascii() or not wanted.isdecimal() or len(wanted) > 6:
        return _refuse(f"The number of slots is a whole number, not {wanted[:20]!r}.")
    real = ports.production_ports()
    try:
        done = controls.set_slots(name, int(wanted), by=actor(request), leases=real.leases)
    except RegistryRefused as refusal:
        return _refuse(str(refusal))
    return _told_of_server(name, done, f"{name}: {wanted} slot{'' if wanted == '1' else 's'}.")


@require_POST
def pause(request: HttpRequest) -> HttpResponse:
    """kind: system, model or tenant. name: the model's, or the tenant's id. reason: why, for the others."""
    kind, name, label = _whom(request)
    reason = request.POST.get("reason", "").strip()
    by, real = actor(request), ports.production_ports()
    target = f"tenant:{label}" if kind is Pause.Kind.TENANT else ""
    try:
        done = controls.pause(kind, name, by=by, reason=reason, leases=real.leases, target=target)
    except RegistryRefused as refusal:
        return _refuse(str(refusal))
    real.send_wakes(done.wakes)
    return _say(f"{label}: {'paused' if done.changed else 'was paused already'}.", mirrored=done.mirrored)


@require_POST
def resume(request: HttpRequest) -> HttpResponse:
    kind, name, label = _whom(request)
    real = ports.production_ports()
    target = f"tenant:{label}" if kind is Pause.Kind.TENANT else ""
    done = controls.resume(kind, name, by=actor(request), leases=real.leases, target=target)
    real.send_wakes(done.wakes)
    return _say(f"{label}: {'goes on' if done.changed else 'was not paused'}.", mirrored=done.mirrored)


def _whom(request: HttpRequest) -> tuple[Pause.Kind, str, str]:
    """The kind, the name as the lease layer knows it, and as people do."""
    wanted, name = request.POST.get("kind", ""), request.POST.get("name", "")
    if wanted not in Pause.Kind.values:
        raise Http404
    kind = Pause.Kind(wanted)
    _require(request, _PERMISSIONS[kind])
    if kind is Pause.Kind.SYSTEM:
        return kind, "", "The whole system"
    if kind is Pause.Kind.MODEL:
        return kind, name, name
    if not name.isascii() or not name.isdecimal() or len(name) > 18:
        raise Http404
    return kind, name, get_object_or_404(Tenant, pk=int(name)).name


def _told_of_server(name: str, done: Registered | None, text: str) -> HttpResponse:
    if done is None:
        return _refuse(f"There is no server {name}.")
    ports.production_ports().send_wakes(done.wakes)
    return _say(text, mirrored=done.mirrored)


def _require(request: HttpRequest, permission: str) -> None:
    if not request.user.has_perm(permission):
        raise PermissionDenied


def _say(text: str, *, mirrored: bool = True) -> HttpResponse:
    return _events(text if mirrored else text + _LATER, is_bad=not mirrored)


def _refuse(text: str) -> HttpResponse:
    return _events(text, is_bad=True)


def _events(text: str, *, is_bad: bool) -> HttpResponse:
    told = {"said": {"text": text, "bad": is_bad}, "changed": None}
    return HttpResponse(status=204, headers={"HX-Trigger": json.dumps(told)})
