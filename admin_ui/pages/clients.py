"""Tenants and their API keys. Secrets are shown once, when they are made; what the
database would take and is surely a mistake is refused."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import urlencode

from django import forms
from django.contrib import admin, messages
from django.core.exceptions import ValidationError
from django.db.models import Count, QuerySet
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import reverse
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString
from unfold.contrib.filters.admin import ChoicesDropdownFilter

from admin_ui.actions.operations import actor, asks_first
from admin_ui.parts.formatting import badge
from admin_ui.parts.live import sync_rules_after_commit
from admin_ui.parts.read_only import OperatorAdmin, ReadOnlyInline
from admin_ui.parts.typed_decorators import column, operation
from foundation.names import NAME_PATTERN
from jobs.callbacks.message import renew_secret
from jobs.domain.access import Scope
from jobs.domain.errors import KeyNotActive, Refused
from jobs.limits.gpu_seconds import used_seconds
from jobs.models import ApiKey, Tenant
from jobs.operations.tenants import (
    CHANGEABLE,
    OVERLAP_SECONDS,
    check_key,
    create_key,
    renew_webhook_secret,
    revoke_key,
    rotate_key,
)


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


class KeysOfTenant(ReadOnlyInline):
    model = ApiKey
    fields = ("prefix", "name", "kind", "created", "expiry_date", "revoked")
    show_change_link = True
    verbose_name_plural = "API keys"


@admin.register(Tenant)
class TenantPages(OperatorAdmin):
    list_display = (
        "name",
        "weight",
        "highest_band",
        "max_running",
        "max_queued",
        "max_queued_seconds",
        "daily_gpu_seconds",
        "keys",
    )
    search_fields = ("name",)
    fieldsets = (
        (None, {"fields": ("name", "weight", "highest_band", "signs", "created_at")}),
        (
            "Limits",
            {
                "fields": (
                    ("max_running", "max_queued", "max_queued_seconds"),
                    ("submits_per_second", "submit_burst"),
                    "daily_gpu_seconds",
                    "used_today",
                    "allowed_models",
                )
            },
        ),
    )
    readonly_fields = ("signs", "used_today", "created_at")
    inlines = (KeysOfTenant,)
    form = TenantForm
    audit_values = ("name", *CHANGEABLE)
    actions = ("renew_secrets", "renew_secrets_slowly")
    actions_detail = ("send_test",)

    @operation("New webhook secret (the old one stops at once)", permissions=["change"])
    @asks_first(
        "Make new webhook secrets?",
        "Callbacks are signed with the new ones at once: who checks them against the old ones refuses them.",
        "Yes, make them",
    )
    def renew_secrets(self, request: HttpRequest, queryset: QuerySet[Tenant]) -> None:
        for tenant in queryset.order_by("name")[:10]:
            secret = renew_webhook_secret(tenant, by=actor(request))
            _show_secret(request, f"webhook secret of {tenant}", secret)

    @operation("New webhook secret (the old one signs too for a day)", permissions=["change"])
    @asks_first(
        "Make new webhook secrets?",
        "Callbacks are signed with both for 24 hours: give the new one to who checks them meanwhile.",
        "Yes, make them",
    )
    def renew_secrets_slowly(self, request: HttpRequest, queryset: QuerySet[Tenant]) -> None:
        for tenant in queryset.order_by("name")[:10]:
            secret = renew_webhook_secret(tenant, overlap_seconds=OVERLAP_SECONDS, by=actor(request))
            _show_secret(request, f"webhook secret of {tenant}", secret)

    @operation("Send a test callback", permissions=["send_test"], icon="outgoing_mail")
    def send_test(self, request: HttpRequest, object_id: str) -> HttpResponse:
        name = Tenant.objects.filter(pk=object_id).values_list("name", flat=True).first() or ""
        return redirect(f"{reverse('admin:jobs_callback_sample')}?{urlencode({'tenant': name})}")

    def has_send_test_permission(self, request: HttpRequest, object_id: Any = None) -> bool:
        return bool(request.user.has_perm("jobs.change_callback"))

    @column("keys")
    def keys(self, tenant: Any) -> int:
        return int(tenant.key_count)

    @column("webhook secret")
    def signs(self, tenant: Tenant) -> str:
        until = tenant.webhook_secret_before_until
        if until is not None and until > timezone.now():
            return f"stored encrypted; the one before signs too until {until:%Y-%m-%d %H:%M} UTC"
        return "stored encrypted" if tenant.webhook_secret_encrypted else "made with the first callback"

    @column("GPU-seconds used today (UTC)")
    def used_today(self, tenant: Tenant) -> str:
        if tenant.pk is None:
            return ""
        if not hasattr(tenant, "used_today"):  # the page asks several times
            tenant.used_today = used_seconds([tenant.pk], timezone.now())[tenant.pk]  # type: ignore[attr-defined]
        return f"{tenant.used_today:.1f}"  # type: ignore[attr-defined]

    def get_queryset(self, request: HttpRequest) -> QuerySet[Tenant]:
        rows: QuerySet[Tenant] = super().get_queryset(request)
        return rows.annotate(key_count=Count("api_keys"))

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:
        super().save_model(request, obj, form, change)
        if not change:
            _show_secret(request, f"webhook secret of {obj}", renew_secret(obj))
        sync_rules_after_commit(request, obj)

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False  # its jobs are history


@admin.register(ApiKey)
class ApiKeyPages(OperatorAdmin):
    form = KeyForm
    list_display = ("prefix", "name", "tenant", "kind_label", "may", "last_used_at", "expiry_date", "revoked")
    list_filter = (("kind", ChoicesDropdownFilter), "revoked")
    list_select_related = ("tenant",)
    search_fields = ("prefix", "name", "tenant__name")
    ordering = ("-created",)
    autocomplete_fields = ("tenant",)
    actions = ("rotate_keys", "revoke_keys")
    fields = ("name", "tenant", "kind", "scopes", "allowed_models", "expiry_date")
    audit_kind = "key"
    audit_values = ("scopes", "allowed_models", "expiry_date", "revoked")

    @operation("Replace (the old one works a day longer)", permissions=["change"])
    @asks_first(
        "Replace these keys?",
        "Each gets a successor that may do the same, shown once. The old ones stop after 24 hours.",
        "Yes, replace",
    )
    def rotate_keys(self, request: HttpRequest, queryset: QuerySet[ApiKey]) -> None:
        for key in queryset.order_by("pk")[:10]:
            try:
                row, plaintext = rotate_key(key, by=actor(request))
            except KeyNotActive as refusal:
                messages.warning(request, f"{key.prefix} not: {refusal}")
                continue
            _show_secret(request, f"key of {row.tenant} that replaces {key.prefix}", plaintext)

    @operation("Revoke (can't be undone)", permissions=["change"])
    @asks_first("Revoke these keys?", "Who uses them is refused at once. It can't be undone.", "Yes, revoke")
    def revoke_keys(self, request: HttpRequest, queryset: QuerySet[ApiKey]) -> None:
        keys = list(queryset.filter(revoked=False))
        for key in keys:
            revoke_key(key, by=actor(request))
        messages.success(request, f"{len(keys)} revoked.")

    def audit_name(self, row: ApiKey) -> str:
        return row.prefix

    @column("scopes")
    def may(self, key: ApiKey) -> str:
        return "all" if key.scopes is None else ", ".join(key.scopes)

    @column("kind")
    def kind_label(self, key: ApiKey) -> SafeString:
        return badge(key.kind, {"operator": "warning", "tenant": "info"})

    def get_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        shown = ("prefix", *self.fields, "created", "last_used_at", "rotated_to", "revoked")
        return shown if obj else self.fields

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        if obj is None:
            return ()
        fixed = ("prefix", "tenant", "kind", "created", "last_used_at", "rotated_to")
        return (*fixed, *self.fields, "revoked") if obj.revoked else fixed

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:
        if change:
            super().save_model(request, obj, form, change)
            return
        row, key = create_key(
            obj.tenant,
            obj.kind,
            name=obj.name,
            scopes=obj.scopes,
            allowed_models=obj.allowed_models,
            expires_at=obj.expiry_date,
        )
        obj.pk, obj.prefix = row.pk, row.prefix
        _show_secret(request, f"{obj.kind} key of {obj.tenant}", key)

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False  # revoke: the prefix stays explainable


def _show_secret(request: HttpRequest, what: str, secret: str) -> None:
    messages.warning(request, _once(what, secret))


def _once(what: str, secret: str) -> SafeString:
    return format_html("The {}, shown only now: <code>{}</code>", what, secret)
