"""Every save and every delete in the admin leaves an audit entry, in the same transaction."""

from __future__ import annotations

import json
from typing import Any

from django.db import transaction
from django.db.models import Model, QuerySet
from django.http import HttpRequest
from unfold.admin import ModelAdmin

from admin_ui.actions.operations import actor
from gpus.registry.audit import record


class AuditedAdmin(ModelAdmin):  # type: ignore[misc]
    """audit_kind: what comes before the colon of a target; the row's own name if empty. audit_values: fields
    whose old and new values are told; of all others only that they changed: some are secret, some long."""

    audit_kind = ""
    audit_values: tuple[str, ...] = ()

    def audit_name(self, row: Any) -> str:
        """What comes after the colon."""
        return str(row)

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:
        super().save_model(request, obj, form, change)
        request.audit_changes = {  # type: ignore[attr-defined]
            name: [form.initial.get(name), form.cleaned_data.get(name)]
            for name in form.changed_data
            if change and name in self.audit_values
        }

    def save_formset(self, request: HttpRequest, form: Any, formset: Any, change: bool) -> None:
        """Rows on their owner's page: as the page of their own would tell them."""
        super().save_formset(request, form, formset, change)
        told = self.admin_site.get_model_admin(formset.model).audit_values
        changes = request.__dict__.setdefault("audit_changes", {})
        for row in formset.forms:
            gone = row in formset.deleted_forms
            for name in [name for name in told if gone or name in row.changed_data]:
                before = row.initial.get(name)
                changes[f"{row.instance} {name}"] = [before, None if gone else row.cleaned_data.get(name)]

    def log_addition(self, request: HttpRequest, obj: Any, message: Any) -> Any:
        self._audit(request, "add", obj, message)
        return super().log_addition(request, obj, message)

    def log_change(self, request: HttpRequest, obj: Any, message: Any) -> Any:
        if message:  # saved as it was
            self._audit(request, "change", obj, message)
        return super().log_change(request, obj, message)

    def delete_model(self, request: HttpRequest, obj: Model) -> None:
        with transaction.atomic():
            self._audit(request, "delete", obj, None)
            super().delete_model(request, obj)

    def delete_queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> None:
        with transaction.atomic():
            for row in queryset:
                self._audit(request, "delete", row, None)
            super().delete_queryset(request, queryset)

    def _audit(self, request: HttpRequest, verb: str, row: Any, message: Any) -> None:
        detail: dict[str, Any] = {}
        if message:
            detail["saved"] = _as_json(message)
        if values := getattr(request, "audit_changes", None):
            detail["values"] = _as_json(values)
        name = self.opts.model_name
        record(
            actor(request), f"{verb}_{name}", f"{self.audit_kind or name}:{self.audit_name(row)}", **detail
        )


def _as_json(value: Any) -> Any:
    return json.loads(json.dumps(value, default=str))
