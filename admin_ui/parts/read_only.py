"""What every page of the operators' admin shares: look but don't touch, and lists that stay cheap."""

from __future__ import annotations

from typing import Any

from django.contrib.admin import AdminSite, ShowFacets
from django.core.paginator import Paginator
from django.db.models import Model, QuerySet
from django.http import HttpRequest
from django.utils.functional import cached_property
from unfold.admin import TabularInline

from admin_ui.actions.audited import AuditedAdmin
from admin_ui.parts.keyset import KeysetChangeList

COUNT_UP_TO = 10_000


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
