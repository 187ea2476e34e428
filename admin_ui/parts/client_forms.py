"""The forms of tenants and keys: what the database would take and nobody means is refused."""

from __future__ import annotations

import re
from typing import Any

from django import forms
from django.core.exceptions import ValidationError

from foundation.names import NAME_PATTERN
from jobs.domain.errors import Refused
from jobs.domain.scopes import Scope
from jobs.models import ApiKey, Tenant
from jobs.operations.api_keys import check_key
from jobs.operations.tenants import CHANGEABLE


def names_or_none(value: Any) -> list[str] | None:
    """A list of models' names. Raises ValidationError."""
    if value is None:
        return None
    told = value if isinstance(value, list) else [None]
    if not all(isinstance(one, str) and re.fullmatch(NAME_PATTERN, one) for one in told):
        raise ValidationError('A JSON list of names, as in ["flux", "zimg"]; empty: all.')
    return sorted(set(value))


class TenantForm(forms.ModelForm):  # type: ignore[type-arg]
    class Meta:
        model = Tenant
        fields = ("name", *CHANGEABLE)

    def clean_allowed_models(self) -> list[str] | None:
        return names_or_none(self.cleaned_data["allowed_models"])


class KeyForm(forms.ModelForm):  # type: ignore[type-arg]
    scopes = forms.MultipleChoiceField(
        choices=[(scope.value, scope.value) for scope in Scope],
        required=False,
        widget=forms.CheckboxSelectMultiple,
        help_text="What it may do. None chosen: all that a key of its kind may.",
    )

    class Meta:
        model = ApiKey
        fields = ("name", "tenant", "kind", "scopes", "allowed_models", "expiry_date")

    def clean_scopes(self) -> list[str] | None:
        return sorted(self.cleaned_data["scopes"]) or None

    def clean_allowed_models(self) -> list[str] | None:
        return names_or_none(self.cleaned_data["allowed_models"])

    def clean(self) -> dict[str, Any] | None:
        cleaned = super().clean() or {}
        expires = cleaned.get("expiry_date") if "expiry_date" in self.changed_data else None
        try:
            check_key(
                cleaned.get("kind") or self.instance.kind, scopes=cleaned.get("scopes"), expires_at=expires
            )
        except Refused as refused:
            field = {"/expires_at": "expiry_date"}.get(refused.pointer or "", "scopes")
            self.add_error(field if field in self.fields else None, str(refused))
        return cleaned
