"""Pages of tenants and API keys. Secrets are shown once, when they are created. The forms reject values that
the schema allows but that are surely mistakes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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
from unfold.widgets import UnfoldAdminCheckboxSelectMultipleWidget

from admin_ui.actions.operations import actor, confirm_first
from admin_ui.parts.base_pages import OperatorAdmin, ReadOnlyInline
from admin_ui.parts.formatting import badge
from admin_ui.parts.live import sync_rules_after_commit
from admin_ui.parts.typed_decorators import column, operation
from gpus.models import ModelConfig
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

NO_MODELS = "(no models)"
"""The choice for an empty list; not a valid name of a model."""


class AllowedModelsField(forms.MultipleChoiceField):
    """Checkboxes for names of models. Its value is None (all models) if none is ticked, else the sorted
    names; `NO_MODELS` stands for the empty list."""

    def __init__(self, **how: Any) -> None:
        super().__init__(required=False, widget=UnfoldAdminCheckboxSelectMultipleWidget, **how)

    def offer(self, stored: Iterable[str] | None) -> None:
        """Set the choices: the registered models, and the stored names, which may be of deleted models."""
        names = {*ModelConfig.objects.values_list("name", flat=True), *(stored or ())}
        self.choices = [(name, name) for name in (*sorted(names), NO_MODELS)]

    def prepare_value(self, value: Any) -> Any:
        return [NO_MODELS] if value == [] else value

    def to_python(self, value: Any) -> list[str] | None:  # type: ignore[override]
        """Raises ValidationError."""
        ticked = super().to_python(value)
        if NO_MODELS in ticked and len(ticked) > 1:
            raise ValidationError(f"Tick either models or {NO_MODELS}.")
        return _stored_names(ticked)

    def validate(self, value: list[str] | None) -> None:
        """Raises ValidationError."""
        super().validate(value or [])

    def has_changed(self, initial: Any, data: Any) -> bool:
        return bool(_stored_names(data or ()) != initial)


def _stored_names(ticked: Sequence[str]) -> list[str] | None:
    return sorted(set(ticked) - {NO_MODELS}) if ticked else None


class TenantForm(forms.ModelForm):  # type: ignore[type-arg]
    allowed_models = AllowedModelsField(help_text="The models it may submit to. None ticked: all models.")

    class Meta:
        model = Tenant
        fields = ("name", *CHANGEABLE)
        labels = {"daily_gpu_seconds": "GPU-seconds per day"}

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        _offer_models(self)


class KeyForm(forms.ModelForm):  # type: ignore[type-arg]
    scopes = forms.MultipleChoiceField(
        choices=[(scope.value, scope.value) for scope in Scope],
        required=False,
        widget=UnfoldAdminCheckboxSelectMultipleWidget,
        help_text="What the key may do. None ticked: everything that a key of its kind may do.",
    )
    allowed_models = AllowedModelsField(
        help_text="The models it may submit to, of those its tenant may. None ticked: all of them."
    )

    class Meta:
        model = ApiKey
        fields = ("name", "tenant", "kind", "scopes", "allowed_models", "expiry_date")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        _offer_models(self)

    def clean_scopes(self) -> list[str] | None:
        return sorted(self.cleaned_data["scopes"]) or None

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


def _offer_models(form: forms.ModelForm) -> None:  # type: ignore[type-arg]
    field = form.fields.get("allowed_models")
    if isinstance(field, AllowedModelsField):  # a read-only page has no such field
        field.offer(form.instance.allowed_models)


def _status(key: ApiKey) -> SafeString:
    if key.revoked:
        return badge("revoked", {"revoked": "danger"})
    return (
        badge("expired", {"expired": "warning"})
        if key.has_expired
        else badge("active", {"active": "success"})
    )


class KeysOfTenant(ReadOnlyInline):
    model = ApiKey
    fields = ("prefix", "name", "kind", "created", "expiry_date", "status")
    show_change_link = True
    verbose_name_plural = "API keys"

    @column("status")
    def status(self, key: ApiKey) -> SafeString:
        return _status(key)


@admin.register(Tenant)
class TenantPages(OperatorAdmin):
    list_display = (
        "name",
        "weight",
        "highest_band",
        "max_running",
        "max_queued",
        "max_queued_seconds",
        "gpu_seconds_per_day",
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
    actions = ("renew_secrets", "renew_secrets_with_overlap")
    actions_detail = ("send_test",)

    @operation("New webhook secret (the old one stops at once)", permissions=["change"])
    @confirm_first(
        "Create new webhook secrets?",
        "Callbacks are signed with the new secrets at once. Receivers with the old ones reject them.",
        "Yes, create them",
    )
    def renew_secrets(self, request: HttpRequest, queryset: QuerySet[Tenant]) -> None:
        for tenant in queryset.order_by("name")[:10]:
            secret = renew_webhook_secret(tenant, by=actor(request))
            _show_secret(request, f"webhook secret of {tenant}", secret)

    @operation("New webhook secret (the old one stays valid for 24 hours)", permissions=["change"])
    @confirm_first(
        "Create new webhook secrets?",
        "Callbacks are signed with both secrets for 24 hours. Give the new one to the receivers by then.",
        "Yes, create them",
    )
    def renew_secrets_with_overlap(self, request: HttpRequest, queryset: QuerySet[Tenant]) -> None:
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
            return f"stored encrypted; the previous one signs too until {until:%Y-%m-%d %H:%M} UTC"
        return "stored encrypted" if tenant.webhook_secret_encrypted else "created with the first callback"

    @column("GPU-seconds per day", ordering="daily_gpu_seconds")
    def gpu_seconds_per_day(self, tenant: Tenant) -> float | None:
        return tenant.daily_gpu_seconds

    @column("GPU-seconds used today (UTC)")
    def used_today(self, tenant: Tenant) -> str:
        if tenant._state.adding:
            return ""
        if not hasattr(tenant, "used_today"):  # the page reads it several times
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
        return False  # its jobs refer to it


@admin.register(ApiKey)
class ApiKeyPages(OperatorAdmin):
    form = KeyForm
    list_display = (
        "prefix",
        "name",
        "tenant",
        "kind_label",
        "scopes_text",
        "last_used_at",
        "expiry_date",
        "status",
    )
    list_filter = (("kind", ChoicesDropdownFilter), "revoked")
    list_select_related = ("tenant",)
    search_fields = ("prefix", "name", "tenant__name")
    ordering = ("-created",)
    autocomplete_fields = ("tenant",)
    actions = ("rotate_keys", "revoke_keys")
    fields = ("name", "tenant", "kind", "scopes", "allowed_models", "expiry_date")
    audit_kind = "key"
    audit_values = ("scopes", "allowed_models", "expiry_date", "revoked")

    @operation("Replace (the old key stays valid for 24 hours)", permissions=["change"])
    @confirm_first(
        "Replace these keys?",
        "Each gets a successor with the same rights, shown once. The old keys stop working after 24 hours.",
        "Yes, replace them",
    )
    def rotate_keys(self, request: HttpRequest, queryset: QuerySet[ApiKey]) -> None:
        for key in queryset.order_by("pk")[:10]:
            try:
                row, plaintext = rotate_key(key, by=actor(request))
            except KeyNotActive as refusal:
                messages.warning(request, f"{key.prefix} was not replaced: {refusal}")
                continue
            _show_secret(request, f"key of {row.tenant} that replaces {key.prefix}", plaintext)

    @operation("Revoke (can't be undone)", permissions=["change"])
    @confirm_first(
        "Revoke these keys?",
        "Requests with them are refused at once. This can't be undone.",
        "Yes, revoke them",
    )
    def revoke_keys(self, request: HttpRequest, queryset: QuerySet[ApiKey]) -> None:
        keys = list(queryset.filter(revoked=False))
        for key in keys:
            revoke_key(key, by=actor(request))
        messages.success(request, f"{len(keys)} revoked.")

    def audit_name(self, row: ApiKey) -> str:
        return row.prefix

    @column("scopes")
    def scopes_text(self, key: ApiKey) -> str:
        return "all" if key.scopes is None else ", ".join(key.scopes)

    @column("status")
    def status(self, key: ApiKey) -> SafeString:
        return _status(key)

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
        return False  # keys are revoked: audit entries name their prefix


def _show_secret(request: HttpRequest, name: str, secret: str) -> None:
    text = format_html(
        "The {}, shown only now: <code>{}</code> Copy it before you leave the page.", name, secret
    )
    messages.warning(request, text)
