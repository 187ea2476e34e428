"""Keyset pagination for lists of millions of rows: pages begin after a row, not at an offset, without a
count.

`?after=<key>` and `?before=<key>` name the row next to the page. A key has the row's values of the fields
that order the list, so that an index finds it. Rows inserted or deleted in between shift no page.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.contrib.admin.options import IncorrectLookupParameters
from django.core.exceptions import ValidationError
from django.core.paginator import Paginator
from django.db.models import Field, Model, Q, QuerySet
from django.http import HttpRequest
from unfold.views import ChangeList

AFTER, BEFORE = "after", "before"
_SEPARATOR = ","


@dataclass(frozen=True, slots=True)
class Slice:
    """A page. rows: in the list's order. before, after: keys of the adjacent pages; empty if there is
    none."""

    rows: list[Any]
    before: str
    after: str


class KeysetPaginator(Paginator):  # type: ignore[type-arg]
    """Names the template of the page links; never asked for a count."""

    template_name = "admin_ui/pagination_keyset.html"


class KeysetChangeList(ChangeList):  # type: ignore[misc]
    """Django's list with keyset pages in place of numbered ones."""

    slice: Slice

    def get_queryset(
        self, request: HttpRequest, exclude_parameters: list[str | None] | None = None
    ) -> QuerySet[Any]:
        for name in (AFTER, BEFORE):  # neither filters nor part of links that filter or sort
            self.params.pop(name, None)
            self.filter_params.pop(name, None)
        rows: QuerySet[Any] = super().get_queryset(request, exclude_parameters)
        return rows

    def get_results(self, request: HttpRequest) -> None:
        try:
            self.slice = cut(
                self.queryset,
                size=self.list_per_page,
                after=request.GET.get(AFTER, ""),
                before=request.GET.get(BEFORE, ""),
            )
        except (ValidationError, ValueError, OverflowError):  # of a filter: beyond SQLite's integers
            raise IncorrectLookupParameters from None
        query = request.GET.copy()
        for name in (AFTER, BEFORE):  # the filter form would keep them: a new filter starts at the first page
            query.pop(name, None)
        request.GET = query  # type: ignore[assignment]
        self.result_list = self.slice.rows
        self.result_count = len(self.slice.rows)
        self.full_result_count = self.result_count  # equal: the header shows no total
        self.show_full_result_count = False
        self.show_admin_actions = True
        self.can_show_all = False
        self.multi_page = bool(self.slice.before or self.slice.after)
        self.paginator = KeysetPaginator(self.slice.rows, self.list_per_page)

    @property
    def first_url(self) -> str:
        return str(self.get_query_string())

    @property
    def before_url(self) -> str:
        return str(self.get_query_string({BEFORE: self.slice.before})) if self.slice.before else ""

    @property
    def after_url(self) -> str:
        return str(self.get_query_string({AFTER: self.slice.after})) if self.slice.after else ""


def cut(rows: QuerySet[Any], *, size: int, after: str = "", before: str = "") -> Slice:
    """Return one page of ordered rows.

    size: rows per page. after, before: the key of the adjacent row; both empty: the first page. Raises
    ValidationError or ValueError if the key does not fit the order.
    """
    order = _order(rows)
    if before:
        reverse = [(field, not falls) for field, falls in order]
        found = list(_beyond(rows, reverse, before).order_by(*_names(reverse))[: size + 1])
        if len(found) > size:
            page = found[:size][::-1]
            return Slice(page, _key(page[0], order), _key(page[-1], order))
        after = ""  # start of the list: return a full first page
    found = list((_beyond(rows, order, after) if after else rows)[: size + 1])
    page = found[:size]
    if after and not page:
        return cut(rows, size=size)  # the rows after the key were deleted
    more = len(found) > size
    return Slice(page, _key(page[0], order) if after and page else "", _key(page[-1], order) if more else "")


_Order = list[tuple["Field[Any, Any]", bool]]
"""Fields, each with True if it is descending."""


def _order(rows: QuerySet[Any]) -> _Order:
    meta = rows.model._meta
    order: _Order = []
    for name in rows.query.order_by or meta.ordering:
        plain = str(name).lstrip("-")
        field = meta.pk if plain == "pk" else meta.get_field(plain)
        if field in [known for known, _ in order]:  # Django repeats the list's own order
            continue
        order.append((field, str(name).startswith("-")))  # type: ignore[arg-type]
        if field is meta.pk:  # unique: later fields have no effect
            return order
    raise TypeError("keyset pagination needs an order that contains the primary key")


def _names(order: _Order) -> list[str]:
    return [f"-{field.attname}" if falls else field.attname for field, falls in order]


def _beyond(rows: QuerySet[Any], order: _Order, key: str) -> QuerySet[Any]:
    """The rows that come after the key."""
    parts = key.split(_SEPARATOR)
    if len(parts) != len(order):
        raise ValueError("the key does not fit this list's order")
    values = [field.to_python(part) for (field, _), part in zip(order, parts, strict=True)]
    beyond, equal = Q(), Q()
    for (field, falls), value in zip(order, values, strict=True):
        past = Q(**{f"{field.attname}__{'lt' if falls else 'gt'}": value})
        beyond |= equal & past
        equal &= Q(**{field.attname: value})
    first, falls = order[0]  # repeated as a bound of its own, so that an index scan starts there
    bound = Q(**{f"{first.attname}__{'lte' if falls else 'gte'}": values[0]})
    return rows.filter(bound & beyond)


def _key(row: Model, order: _Order) -> str:
    return _SEPARATOR.join(field.value_to_string(row) for field, _ in order)
