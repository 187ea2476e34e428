"""Base classes of the admin's pages: audited, read-only, and history pages, whose lists stay cheap for
millions of rows; and the permission to see payloads."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

from django.contrib.admin import AdminSite, ShowFacets
from django.contrib.admin.options import IncorrectLookupParameters
from django.contrib.admin.utils import unquote
from django.core.paginator import Paginator
from django.db import transaction
from django.db.models import Model, QuerySet
from django.http import HttpRequest, HttpResponse
from django.urls import URLPattern, path
from django.utils.functional import cached_property
from django.utils.text import capfirst
from unfold.admin import ModelAdmin, TabularInline
from unfold.views import ChangeList

from admin_ui.actions.operations import actor
from admin_ui.parts.keyset import KeysetChangeList
from admin_ui.parts.own_changes import OwnChanges
from gpus.registry.audit import record
from jobs.domain.access import VIEW_PAYLOAD

BODIES = ("body", "body_json")
COUNT_UP_TO = 10_000


class AuditedAdmin(ModelAdmin):  # type: ignore[misc]
    """Writes an audit entry, in the same transaction, for each save and delete, with the target
    ``kind:name``.

    audit_kind: the target's kind; empty: the model's name. audit_values: fields whose old and new values are
    recorded; of other fields, which may be secret or long, the entry records only that they changed."""

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
        """Record inline rows with the `audit_values` of their own page."""
        super().save_formset(request, form, formset, change)
        recorded = self.admin_site.get_model_admin(formset.model).audit_values
        changes = request.__dict__.setdefault("audit_changes", {})
        for row in formset.forms:
            gone = row in formset.deleted_forms
            for name in [name for name in recorded if gone or name in row.changed_data]:
                before = row.initial.get(name)
                changes[f"{row.instance} {name}"] = [before, None if gone else row.cleaned_data.get(name)]

    def log_addition(self, request: HttpRequest, obj: Any, message: Any) -> Any:
        self._audit(request, "add", obj, message)
        return super().log_addition(request, obj, message)

    def log_change(self, request: HttpRequest, obj: Any, message: Any) -> Any:
        if message:  # empty if no field changed
            self._audit(request, "change", obj, message)
        return super().log_change(request, obj, message)

    def lock(self, row: Any) -> None:
        """Lock what a change of the row reads, until the transaction ends."""
        lock_row(row)

    def delete_model(self, request: HttpRequest, obj: Model) -> None:
        with transaction.atomic():
            self.lock(obj)  # before Django collects the rows that refer to it
            self._audit(request, "delete", obj, None)
            super().delete_model(request, obj)

    def delete_queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> None:
        with transaction.atomic():
            for row in queryset.order_by("pk"):
                self.lock(row)
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
    """Return True if the user may see payloads, results, and messages that contain them."""
    return bool(request.user.has_perm(VIEW_PAYLOAD))


def without_bodies(request: HttpRequest, fields: Sequence[str]) -> Sequence[str]:
    """Return a page's fields, without message bodies if the user may not see payloads."""
    return fields if sees_payloads(request) else [name for name in fields if name not in BODIES]


class CappedPaginator(Paginator):  # type: ignore[type-arg]
    """Counts at most `COUNT_UP_TO` rows: counting millions costs more than showing a page."""

    @cached_property
    def count(self) -> int:
        rows: QuerySet[Any] = self.object_list  # type: ignore[assignment]
        return rows[:COUNT_UP_TO].count()


class CappedChangeList(ChangeList):  # type: ignore[misc]
    """Django's list; its header offers "Show all" only under a filter or search."""

    def get_results(self, request: HttpRequest) -> None:
        try:
            super().get_results(request)
        except OverflowError:  # a filter has a number beyond SQLite's integers
            raise IncorrectLookupParameters from None
        if not (self.has_active_filters or self.query):
            self.full_result_count = self.result_count


class OperatorAdmin(AuditedAdmin):
    """Base of all pages.

    noun: singular and plural for headings, where the model's own names do not fit; the model's Meta would
    need a migration. about: a sentence above the list that explains its rows.
    """

    noun: tuple[str, str] | None = None
    about = ""
    list_before_template = "admin_ui/about.html"

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
        if self.noun:
            model._meta.verbose_name, model._meta.verbose_name_plural = self.noun

    def get_form(self, request: HttpRequest, obj: Any = None, change: bool = False, **kwargs: Any) -> Any:
        form = super().get_form(request, obj, change, **kwargs)
        return form if obj is None else type(form.__name__, (OwnChanges, form), {})

    def changeform_view(
        self, request: HttpRequest, object_id: str | None = None, *args: Any, **kwargs: Any
    ) -> HttpResponse:
        """Lock the row before a POST reads it: its form saves all columns as they were read."""
        with transaction.atomic() if request.method == "POST" else nullcontext():
            if request.method == "POST" and object_id is not None:
                row = self.get_object(request, unquote(object_id))
                if row is not None:
                    self.lock(row)
            response: HttpResponse = super().changeform_view(request, object_id, *args, **kwargs)
            return response

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        return CappedChangeList

    def routes(self, *views: tuple[str, Callable[..., HttpResponse], str]) -> list[URLPattern]:
        """Return the URLs of further views, each a route, a view for staff and a name, for `get_urls`."""
        return [path(route, self.admin_site.admin_view(view), name=name) for route, view, name in views]

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> Any:
        """Django's list with the plural as title, in place of "Select … to change"."""
        title = capfirst(str(self.opts.verbose_name_plural))
        return super().changelist_view(request, {"title": title, **(extra_context or {})})


def lock_row(row: Model) -> None:
    """Lock a row until the transaction ends; rows that refer to it may still be inserted."""
    rows = type(row)._base_manager.select_for_update(no_key=True)
    rows.filter(pk=row.pk).values_list("pk").first()


def is_list(request: HttpRequest) -> bool:
    """Return True for the request of a list; lists do not read large fields."""
    match = request.resolver_match
    return match is not None and (match.url_name or "").endswith("changelist")


class ReadOnly:
    """Mixin that denies adding, changing and deleting: only services change these rows."""

    def has_add_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False


class ReadOnlyAdmin(ReadOnly, OperatorAdmin):
    """Base of read-only pages."""


class HistoryAdmin(ReadOnlyAdmin):
    """Base of read-only lists of millions of rows: keyset pages, no counts. heavy: large fields that the list
    does not read."""

    list_disable_select_all = True
    heavy: tuple[str, ...] = ()

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        rows: QuerySet[Any] = super().get_queryset(request)
        return rows.defer(*self.heavy) if is_list(request) else rows

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[KeysetChangeList]:
        return KeysetChangeList


class IndexedSearch:
    """Mixin for a search by exact match on indexed columns, which the page implements in `find`."""

    def find(self, rows: QuerySet[Any], term: str) -> QuerySet[Any]:
        """Return the rows that match. term: stripped, not empty."""
        raise NotImplementedError

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        term = search_term.strip()
        return (self.find(queryset, term) if term else queryset), False


class ReadOnlyInline(ReadOnly, TabularInline):  # type: ignore[misc]
    """A read-only table on the page of a related row, twenty rows per page."""

    extra = 0
    max_num = 0
    per_page = 20
    can_delete = False
    hide_title = True

    def get_readonly_fields(self, request: HttpRequest, obj: Model | None = None) -> Any:
        return self.fields
