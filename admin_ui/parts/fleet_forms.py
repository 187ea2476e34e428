"""Forms of servers, placements, models and pools, validated by the registry's own rules."""

from __future__ import annotations

import json
import re
import ssl
from typing import Any
from urllib.parse import urlsplit

from django import forms
from django.core.exceptions import ValidationError
from unfold.widgets import UnfoldAdminSelectWidget, UnfoldAdminTextareaWidget

from foundation import json_text
from foundation.secrets import encrypt
from gpus.models import ModelConfig, Placement, Pool, Server
from gpus.registry.model_fields import (
    MODEL_FIELDS,
    OPTIONS,
    RegistryRefused,
    help_of,
    refusals,
    stored_options,
)
from gpus.registry.registry import check_slots, would_move_secrets
from gpus.runners.registry import RUNNERS, find_runner, runner_names

_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_HEADER_VALUE = re.compile(r"[\x20-\x7e\t]*")


def read_headers(text: str) -> dict[str, str] | None:
    """Return the headers of a JSON object; None for an empty text. Raises ValidationError."""
    text = text.strip()
    if not text:
        return None
    try:
        headers = json_text.read(text.encode())
    except ValueError as error:
        raise ValidationError(f"Not JSON: {error}") from None
    if not isinstance(headers, dict):
        raise ValidationError("Must be a JSON object of header names and values.")
    for name, value in headers.items():
        if (
            not _HEADER_NAME.fullmatch(name)
            or not isinstance(value, str)
            or not _HEADER_VALUE.fullmatch(value)
        ):
            raise ValidationError(f"{name!r} is not a header name with a text value.")
    return headers


def read_certificate(text: str) -> str:
    """Return a certificate in PEM form, or an empty text. Raises ValidationError."""
    pem = text.strip()
    if pem:
        try:
            ssl.create_default_context(cadata=pem)
        except (ssl.SSLError, ValueError):
            raise ValidationError("Not a certificate in PEM form.") from None
    return pem


class ServerForm(forms.ModelForm):  # type: ignore[type-arg]
    request_headers = forms.CharField(
        required=False,
        widget=UnfoldAdminTextareaWidget(attrs={"rows": 3, "placeholder": '{"Authorization": "Bearer …"}'}),
        help_text="Secret headers of every request to this server, as a JSON object. "
        "Stored encrypted, never shown. Empty: unchanged. {}: remove them.",
    )

    class Meta:
        model = Server
        fields = ("name", "pool", "slots", "desired", "machine", "host", "ca_pem")
        labels = {"ca_pem": "CA certificate"}

    def clean_slots(self) -> int:
        slots: int = self.cleaned_data["slots"]
        try:
            check_slots(slots)
        except RegistryRefused as refusal:
            raise ValidationError(str(refusal)) from None
        return slots

    def clean_request_headers(self) -> dict[str, str] | None:
        return read_headers(self.cleaned_data["request_headers"])

    def clean_ca_pem(self) -> str:
        return read_certificate(self.cleaned_data["ca_pem"])

    def save(self, commit: bool = True) -> Any:
        headers = self.cleaned_data.get("request_headers")
        if headers is not None:
            self.instance.headers_encrypted = encrypt(json.dumps(headers)) if headers else ""
        return super().save(commit)


class PlacementForm(forms.ModelForm):  # type: ignore[type-arg]
    class Meta:
        model = Placement
        fields = ("server", "model", "endpoint")
        help_texts = {"endpoint": "URL that payloads are POSTed to, such as http://gpu-1:9101/generate."}

    def clean_endpoint(self) -> str:
        endpoint: str = self.cleaned_data["endpoint"]
        if self.instance.pk and endpoint == self.instance.endpoint:
            return endpoint  # a pinned server's is local://
        try:
            parts = urlsplit(endpoint)
            valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:
            valid = False
        if not valid or any(character.isspace() for character in endpoint):
            raise ValidationError("Must be an http:// or https:// URL with a host.")
        return endpoint

    def clean(self) -> dict[str, Any] | None:
        cleaned = super().clean()
        server, config = self.cleaned_data.get("server"), self.cleaned_data.get("model")
        if server is not None and config is not None and server.pool_id and server.pool_id != config.pool_id:
            raise ValidationError(
                f"{config} belongs to pool {config.pool_id}, the server to {server.pool_id}."
            )
        server, endpoint = server or self._server(), self.cleaned_data.get("endpoint")
        if server is not None and endpoint and _moves_secrets(server, endpoint):
            self.add_error(
                "endpoint",
                "The server has secret headers, and this endpoint has another origin. "
                "Change it on the server's page, and enter there the headers for the new origin, or {}.",
            )
        return cleaned

    def _server(self) -> Server | None:
        """Check an inline row with the headers that are saved in the same form."""
        return self.instance.server if self.instance.server_id else None


def _moves_secrets(server: Server, endpoint: str) -> bool:
    """Return True if the form sends new headers, which may go to the new origin."""
    stored = Server.objects.filter(pk=server.pk).first()
    return (
        stored is not None
        and server.headers_encrypted == stored.headers_encrypted
        and would_move_secrets(stored, endpoint)
    )


def _runner_choices() -> list[tuple[str, str]]:
    return [(name, name) for name in runner_names()]


class ModelConfigForm(forms.ModelForm):  # type: ignore[type-arg]
    model_type = forms.ChoiceField(choices=_runner_choices, widget=UnfoldAdminSelectWidget)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        field = self.fields.get("model_type")
        if isinstance(field, forms.ChoiceField):
            stored = self.instance.model_type
            if find_runner(stored) is None:  # the other fields can still be changed
                field.choices = [*_runner_choices(), (stored, f"{stored} (not installed)")]
            field.initial = stored
        for name in OPTIONS.keys() & self.fields.keys():
            self.fields[name].help_text = help_of(name)
        if field is not None:
            field.help_text = " ".join(f"{name}: {one.summary}" for name, one in RUNNERS.all().items())

    class Meta:
        model = ModelConfig
        fields = ("name", "pool", *MODEL_FIELDS)
        help_texts = {
            "name": "The `model` in clients' requests. It can't be changed later.",
            "pool": "The pool whose slots the model shares. It can't be changed later.",
        }

    def clean(self) -> dict[str, Any] | None:
        cleaned = super().clean() or {}
        for name, field in OPTIONS.items():
            if name in cleaned and field.null and cleaned[name] == "":
                cleaned[name] = None
        return cleaned

    def _get_validation_exclusions(self) -> set[str]:
        """Skip Django's validation of options: `_post_clean` checks the registry's rules for changed
        values."""
        return {*super()._get_validation_exclusions(), *OPTIONS}  # type: ignore[misc]

    def _post_clean(self) -> None:
        stored = stored_options(self.instance)
        super()._post_clean()  # type: ignore[misc]
        for refused in refusals(self.instance, stored):
            field = refused.pointer.split("/")[1]
            if field not in self.errors:
                self.add_error(field if field in self.fields else None, str(refused))


class PoolForm(forms.ModelForm):  # type: ignore[type-arg]
    class Meta:
        model = Pool
        fields = ("name", "fleet", "algorithm", "affinity_patience_seconds")

    def clean_affinity_patience_seconds(self) -> float:
        patience: float = self.cleaned_data["affinity_patience_seconds"]
        if patience < 0:
            raise ValidationError("Must be 0 seconds or more.")
        return patience
