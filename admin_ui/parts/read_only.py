"""What every page of the operators' admin shares: look but don't touch, lists that stay cheap, payloads only
for those who may see them, and an audit entry for every save and delete, in the same transaction."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from django.contrib.admin import AdminSite, ShowFacets
from django.core.paginator import Paginator
from django.db import transaction
from django.db.models import Model, QuerySet
from django.http import HttpRequest
from django.utils.functional import cached_property
from unfold.admin import ModelAdmin, TabularInline

from admin_ui.actions.operations import actor
from admin_ui.parts.keyset import KeysetChangeList
from gpus.registry.audit import record
from jobs.domain.access import VIEW_PAYLOAD

BODIES = ("body", "body_json")
COUNT_UP_TO = 10_000


class AuditedAdmin(ModelAdmin):  # type: ignore[misc]
    """Writes an audit entry for each change, with the target ``kind:name``.

    audit_kind: the target's kind; empty: the model's name. audit_values: fields whose old and new
    values are recorded. For other fields the entry says only that they changed, because values may be secret
    or long."""

    audit_kind = ""
    audit_values: tuple[str, ...] = ()

    def audit_name(self, row: Any) -> str:
        """The target's name."""
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


def sees_payloads(request: HttpRequest) -> bool:
    """Payloads, results, and the messages that carry them."""
    return bool(request.user.has_perm(VIEW_PAYLOAD))


def without_bodies(request: HttpRequest, fields: Sequence[str]) -> Sequence[str]:
    """A page's fields; the body of a message only for those who may see payloads."""
    return fields if sees_payloads(request) else [name for name in fields if name not in BODIES]


class CappedPaginator(Paginator):  # type: ignore[type-arg]
    """Counts no further than 10,000 rows: counting millions costs more than showing a page of them."""

    @cached_property
    def count(self) -> int:
        rows: QuerySet[Any] = self.object_list  # type: ignore[assignment]
        return rows[:COUNT_UP_TO].count()


class OperatorAdmin(AuditedAdmin):
    """Base of all pages. plural: of the headings, where the model's name and an s is wrong. The model's Meta
    could say it at the price of a migration."""

    plural = ""

    paginator = CappedPaginator
    show_full_result_count = False
    list_per_page = 50
    list_max_show_all = 200
    list_filter_submit = True
    list_fullwidth = True
    save_on_top = False
    show_facets = ShowFacets.NEVER

    def __init__(self, model: type[Model], admin_site: AdminSite) -> None:
        super().__init__(model, admin_site)
        if self.plural:
            model._meta.verbose_name_plural = self.plural


def is_list(request: HttpRequest) -> bool:
    """Whether a list is asked for: lists leave big fields in the database."""
    match = request.resolver_match
    return match is not None and (match.url_name or "").endswith("changelist")


class NoTouching:
    """No adding, no changing, no deleting: only services move these rows."""

    def has_add_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False


class ReadOnlyAdmin(NoTouching, OperatorAdmin):
    """A page of history."""


class HistoryAdmin(ReadOnlyAdmin):
    """A list that grows to millions: paged by key, never counted. heavy: big fields that its list leaves in
    the database."""

    list_disable_select_all = True
    heavy: tuple[str, ...] = ()

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        rows: QuerySet[Any] = super().get_queryset(request)
        return rows.defer(*self.heavy) if is_list(request) else rows

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[KeysetChangeList]:
        return KeysetChangeList


class IndexedSearch:
    """A search by whole words, each looked for where an index finds it: the page says how."""

    def find(self, rows: QuerySet[Any], term: str) -> QuerySet[Any]:
        """term: without blanks around it, and not empty."""
        raise NotImplementedError

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        term = search_term.strip()
        return (self.find(queryset, term) if term else queryset), False


class ReadOnlyInline(NoTouching, TabularInline):  # type: ignore[misc]
    """A table of history on somebody else's page, twenty lines at a time."""

    extra = 0
    max_num = 0
    per_page = 20
    can_delete = False
    hide_title = True

    def get_readonly_fields(self, request: HttpRequest, obj: Model | None = None) -> Any:
        return self.fields
