"""Add a model server: its address in, proposals out; a confirmation registers the chosen models as the API
does."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django import forms
from django.contrib import messages
from django.contrib.admin.utils import quote
from django.core.exceptions import PermissionDenied, SuspiciousOperation
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, reverse
from unfold.widgets import (
    UnfoldAdminIntegerFieldWidget,
    UnfoldAdminTextareaWidget,
    UnfoldAdminTextInputWidget,
    UnfoldBooleanWidget,
)

from admin_ui.actions.operations import LATER, actor
from admin_ui.parts.fleet_forms import read_certificate, read_headers
from admin_ui.parts.live import LiveAdmin
from foundation.names import validate_name
from foundation.secrets import SecretUnreadable, decrypt, encrypt
from gpus.health.registration import register_and_check
from gpus.models import Server
from gpus.protocol import MAX_SLOTS
from gpus.registry.model_fields import FIELDS, RegistryRefused
from gpus.registry.recognise import look_at, registration
from jobs import ports

_PURPOSE = "add_model_server"


class AddressForm(forms.Form):
    """The server's address, and the headers that it requires."""

    url = forms.CharField(
        label="Address",
        widget=UnfoldAdminTextInputWidget(attrs={"placeholder": "http://box-1:8000", "inputmode": "url"}),
        help_text="Of the server, or of one of its endpoints.",
    )
    request_headers = forms.CharField(
        required=False,
        label="Secret headers",
        widget=UnfoldAdminTextareaWidget(attrs={"rows": 2, "placeholder": '{"Authorization": "Bearer …"}'}),
        help_text="Of every request to this server, as a JSON object. Stored encrypted, never shown.",
    )
    ca_pem = forms.CharField(
        required=False,
        label="CA certificate",
        widget=UnfoldAdminTextareaWidget(attrs={"rows": 2, "placeholder": "-----BEGIN CERTIFICATE-----"}),
        help_text="In PEM form, if the server has a CA of its own.",
    )

    def clean_request_headers(self) -> dict[str, str] | None:
        return read_headers(self.cleaned_data["request_headers"])

    def clean_ca_pem(self) -> str:
        return read_certificate(self.cleaned_data["ca_pem"])


@dataclass(frozen=True, slots=True)
class Inspection:
    """The result of a server's inspection, as the confirmation form carries it: encrypted, because of the
    headers.

    bodies: proposed registrations. reasons, payloads: of each, for the operator.
    """

    url: str
    headers: Mapping[str, str] | None
    ca_pem: str
    bodies: Sequence[Mapping[str, Any]]
    reasons: Sequence[Sequence[str]]
    payloads: Sequence[Any]
    problems: Sequence[str]

    def sealed(self, user: Any) -> str:
        """Return the inspection as a token that only this user can send back."""
        fields = {name: getattr(self, name) for name in self.__slots__}
        return encrypt(json.dumps({"purpose": _PURPOSE, "user": user.pk, "found": fields}))

    @classmethod
    def opened(cls, token: str, user: Any) -> Inspection:
        """Return the inspection of a token. Raises SuspiciousOperation for any other text."""
        try:
            stored = json.loads(decrypt(token))
        except (SecretUnreadable, ValueError):
            raise SuspiciousOperation("not an inspection") from None
        if not isinstance(stored, dict) or (stored.get("purpose"), stored.get("user")) != (_PURPOSE, user.pk):
            raise SuspiciousOperation("not an inspection of this user")
        return cls(**stored["found"])


def _name(label: str, **more: Any) -> forms.CharField:
    return forms.CharField(
        label=label, max_length=64, validators=[validate_name], widget=UnfoldAdminTextInputWidget(), **more
    )


class RegistrationForm(forms.Form):
    """The fields to confirm: of the server, and a name for each model, which is registered if it is ticked.

    A single proposal needs no tick.
    """

    def __init__(self, found: Inspection, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.found = found
        first = found.bodies[0]
        known = Server.objects.filter(name=first["server"]).first()
        self.fields["server"] = _name("Server", initial=first["server"])
        self.fields["slots"] = forms.IntegerField(
            min_value=0,
            max_value=MAX_SLOTS,
            initial=known.slots if known else first["slots"],
            widget=UnfoldAdminIntegerFieldWidget(),
            help_text="Jobs that run there at one time.",
        )
        self.fields["pool"] = _name(
            "Pool",
            required=False,
            initial=known.pool_id if known else "",
            help_text="Of new models. Empty: the server's pool, or one named after the first model.",
        )
        for number, body in enumerate(found.bodies):
            if not self.is_single:
                self.fields[f"use_{number}"] = forms.BooleanField(
                    required=False, label=f"Register {body['model']}", widget=UnfoldBooleanWidget()
                )
            self.fields[f"model_{number}"] = _name("Model", initial=body["model"])

    @property
    def is_single(self) -> bool:
        return len(self.found.bodies) == 1

    def server_fields(self) -> list[forms.BoundField]:
        return [self[name] for name in ("server", "slots", "pool")]

    def proposals(self) -> list[dict[str, Any]]:
        """The proposals for the template, each with its fields."""
        return [
            {
                "body": body,
                "use": None if self.is_single else self[f"use_{number}"],
                "model": self[f"model_{number}"],
                "reasons": self.found.reasons[number],
                "payload": self.found.payloads[number],
                "options": {name: value for name, value in body.items() if name in FIELDS},
            }
            for number, body in enumerate(self.found.bodies)
        ]

    def clean(self) -> dict[str, Any] | None:
        cleaned = super().clean()
        chosen = self._chosen()
        names = [self.cleaned_data.get(f"model_{number}") for number in chosen]
        if not chosen:
            raise forms.ValidationError("Tick at least one model.")
        if len(set(names)) < len(names):
            raise forms.ValidationError("Two models have the same name.")
        return cleaned

    def registrations(self) -> list[dict[str, Any]]:
        """The registrations of a valid form, all in one pool: a server is part of one."""
        server, slots, pool = (self.cleaned_data[name] for name in ("server", "slots", "pool"))
        names = [(number, self.cleaned_data[f"model_{number}"]) for number in self._chosen()]
        if not pool:
            known = Server.objects.filter(name=server).values_list("pool", flat=True).first()
            pool = known or (names[0][1] if len(names) > 1 else "")
        changed = {"server": server, "slots": slots}
        return [
            {**self.found.bodies[number], **changed, "model": name, **({"pool": pool} if pool else {})}
            for number, name in names
        ]

    def _chosen(self) -> list[int]:
        numbers = range(len(self.found.bodies))
        return [number for number in numbers if self.is_single or self.cleaned_data.get(f"use_{number}")]


class AddModelServer(LiveAdmin):
    """Mixin of `admin_ui.pages.servers.ServerPages`: the page *Add a model server*."""

    def get_urls(self) -> list[URLPattern]:
        return [
            *self.routes(("register/", self.add_model_server, "gpus_server_register")),
            *super().get_urls(),
        ]

    def add_model_server(self, request: HttpRequest) -> HttpResponse:
        """GET: the form for an address. POST: with `inspection`, register its proposal; else look."""
        if not request.user.has_perm("gpus.add_server"):
            raise PermissionDenied
        if request.method != "POST":
            return self._page(request, AddressForm())
        if token := request.POST.get("inspection"):
            found = Inspection.opened(token, request.user)
            form = RegistrationForm(found, request.POST)
            if form.is_valid() and _registered(request, form):
                return redirect(_page_after(request, form.cleaned_data["server"]))
            return self._proposals(request, form, token)
        address = AddressForm(request.POST)
        if not address.is_valid():
            return self._page(request, address)
        looked = _look(address)
        if looked is None:
            return self._page(request, address)
        return self._proposals(request, RegistrationForm(looked), looked.sealed(request.user))

    def _proposals(self, request: HttpRequest, form: RegistrationForm, token: str) -> HttpResponse:
        known = Server.objects.filter(name=form["server"].value() or "").first()
        return self._page(request, None, {"form": form, "token": token, "found": form.found, "known": known})

    def _page(
        self, request: HttpRequest, address: AddressForm | None, more: Mapping[str, Any] | None = None
    ) -> HttpResponse:
        context = {
            **self.admin_site.each_context(request),
            "title": "Add a model server",
            "opts": self.opts,
            "address": address,
            **(more or {}),
        }
        return TemplateResponse(request, "admin_ui/servers/add.html", context)


def _look(address: AddressForm) -> Inspection | None:
    """Look at the server of a valid form; on failure None, with the form's errors."""
    url, headers, ca_pem = (address.cleaned_data[name] for name in ("url", "request_headers", "ca_pem"))
    try:
        found = look_at(
            url, headers=headers, ca_pem=ca_pem or None, transport=ports.production_ports().transport
        )
    except RegistryRefused as refusal:
        address.add_error("url", str(refusal))
        return None
    if not found.proposals:
        address.add_error("url", " ".join(["Nothing to register was found.", *found.problems]))
        return None
    return Inspection(
        url,
        headers,
        ca_pem,
        [registration(one) for one in found.proposals],
        [one.reasons for one in found.proposals],
        [one.test_payload for one in found.proposals],
        found.problems,
    )


def _registered(request: HttpRequest, form: RegistrationForm) -> bool:
    """Register the chosen models, with a message for each. False, with the form's error, if one is refused;
    those before it stay registered."""
    real = ports.production_ports()
    secrets: dict[str, Any] = {"headers": form.found.headers, "ca_pem": form.found.ca_pem or None}
    for body in form.registrations():
        try:
            done, warnings = register_and_check({**body, **secrets}, by=actor(request), ports=real)
        except RegistryRefused as refusal:
            form.add_error(None, f"{body['model']}: {refusal}")
            return False
        messages.success(request, f"{done.config.name} is registered on {done.server.name}.")
        if not done.mirrored:
            messages.warning(request, LATER)
        for warning in warnings:
            messages.warning(request, warning.detail)
    return True


def _page_after(request: HttpRequest, server: str) -> str:
    if request.user.has_perm("gpus.view_server"):
        return reverse("admin:gpus_server_change", args=[quote(server)])
    return reverse("admin:index")
