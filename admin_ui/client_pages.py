"""Tenants and their API keys. Secrets are shown once, when they are made."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

from django.contrib import admin, messages
from django.db.models import Count, QuerySet
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from unfold.contrib.filters.admin import ChoicesDropdownFilter

from jobs.callbacks.tenant_secret import renew_secret
from jobs.models import ApiKey, Tenant
from jobs.services.tenants import create_key, renew_webhook_secret, revoke_key

from .asking import asks_first
from .live import tell_rules_after_commit
from .marks import column, operation
from .operating import actor
from .read_only import OperatorAdmin, ReadOnlyInline
from .shapes import badge


class KeysOfTenant(ReadOnlyInline):
    model = ApiKey
    fields = ("prefix", "name", "kind", "created", "expiry_date", "revoked")
    show_change_link = True
    verbose_name_plural = "API keys"


@admin.register(Tenant)
class TenantPages(OperatorAdmin):
    list_display = ("name", "weight", "highest_band", "max_running", "keys", "created_at")
    search_fields = ("name",)
    fields = ("name", "weight", "highest_band", "max_running", "signs", "created_at")
    readonly_fields = ("signs", "created_at")
    inlines = (KeysOfTenant,)
    audit_values = ("name", "weight", "highest_band", "max_running")
    actions = ("renew_secrets",)
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
        return "stored encrypted" if tenant.webhook_secret_encrypted else "made with the first callback"

    def get_queryset(self, request: HttpRequest) -> QuerySet[Tenant]:
        rows: QuerySet[Tenant] = super().get_queryset(request)
        return rows.annotate(key_count=Count("api_keys"))

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:
        super().save_model(request, obj, form, change)
        if not change:
            _show_secret(request, f"webhook secret of {obj}", renew_secret(obj))
        tell_rules_after_commit(request, obj)

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False  # its jobs are history


@admin.register(ApiKey)
class ApiKeyPages(OperatorAdmin):
    list_display = ("prefix", "name", "tenant", "kind_label", "created", "expiry_date", "revoked")
    list_filter = (("kind", ChoicesDropdownFilter), "revoked")
    list_select_related = ("tenant",)
    search_fields = ("prefix", "name", "tenant__name")
    ordering = ("-created",)
    autocomplete_fields = ("tenant",)
    actions = ("revoke_keys",)
    fields = ("name", "tenant", "kind", "expiry_date")
    audit_kind = "key"
    audit_values = ("expiry_date", "revoked")

    @operation("Revoke (can't be undone)", permissions=["change"])
    @asks_first("Revoke these keys?", "Who uses them is refused at once. It can't be undone.", "Yes, revoke")
    def revoke_keys(self, request: HttpRequest, queryset: QuerySet[ApiKey]) -> None:
        keys = list(queryset.filter(revoked=False))
        for key in keys:
            revoke_key(key, by=actor(request))
        messages.success(request, f"{len(keys)} revoked.")

    def audit_name(self, row: ApiKey) -> str:
        return row.prefix

    @column("kind")
    def kind_label(self, key: ApiKey) -> SafeString:
        return badge(key.kind, {"operator": "warning", "tenant": "info"})

    def get_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        return ("prefix", *self.fields, "created", "revoked") if obj else self.fields

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        if obj is None:
            return ()
        fixed = ("prefix", "tenant", "kind", "created")
        return (*fixed, "name", "expiry_date", "revoked") if obj.revoked else fixed

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:
        if change:
            super().save_model(request, obj, form, change)
            return
        row, key = create_key(obj.tenant, obj.kind, name=obj.name)
        row.expiry_date = obj.expiry_date
        row.save(update_fields=["expiry_date"])
        obj.pk, obj.prefix = row.pk, row.prefix
        _show_secret(request, f"{obj.kind} key of {obj.tenant}", key)

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False  # revoke: the prefix stays explainable


def _show_secret(request: HttpRequest, what: str, secret: str) -> None:
    messages.warning(request, _once(what, secret))


def _once(what: str, secret: str) -> SafeString:
    return format_html("The {}, shown only now: <code>{}</code>", what, secret)
