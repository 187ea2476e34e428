"""Lists of millions: a page begins after a row, never at a number, and nothing is counted.

`?after=<key>` and `?before=<key>` name the row next to the page; a key is the row's values of the fields that
the list is ordered by, so that an index finds the place. A row that comes or goes meanwhile shifts nothing.
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
_BETWEEN = ","


@dataclass(frozen=True, slots=True)
class Slice:
    """rows: in the list's order. before, after: the keys of the pages next to it; empty: there is none."""

    rows: list[Any]
    before: str
    after: str


class KeysetPaginator(Paginator):  # type: ignore[type-arg]
    """Counts nothing; only says which template turns the pages."""

    template_name = "admin_ui/pagination_keyset.html"


class KeysetChangeList(ChangeList):  # type: ignore[misc]
    slice: Slice

    def get_queryset(
        self, request: HttpRequest, exclude_parameters: list[str | None] | None = None
    ) -> QuerySet[Any]:
        for name in (AFTER, BEFORE):  # no filters, and no part of the links that filter or sort
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
        except (ValidationError, ValueError):
            raise IncorrectLookupParameters from None
        asked = request.GET.copy()
        for name in (AFTER, BEFORE):  # the filters' form keeps what it does not know: it begins anew instead
            asked.pop(name, None)
        request.GET = asked  # type: ignore[assignment]
        self.result_list = self.slice.rows
        self.result_count = len(self.slice.rows)
        self.full_result_count = self.result_count  # the header then says nothing of it
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
    """One page of ordered rows. Raises ValidationError or ValueError for what is no key of this order."""
    order = _order(rows)
    if before:
        reverse = [(field, not falls) for field, falls in order]
        found = list(_beyond(rows, reverse, before).order_by(*_names(reverse))[: size + 1])
        if len(found) > size:
            page = found[:size][::-1]
            return Slice(page, _key(page[0], order), _key(page[-1], order))
        after = ""  # the list begins here: a whole first page
    found = list((_beyond(rows, order, after) if after else rows)[: size + 1])
    page = found[:size]
    if after and not page:
        return cut(rows, size=size)  # what came after is gone
    more = len(found) > size
    return Slice(page, _key(page[0], order) if after and page else "", _key(page[-1], order) if more else "")


_Order = list[tuple["Field[Any, Any]", bool]]
"""Fields, and whether they fall."""


def _order(rows: QuerySet[Any]) -> _Order:
    meta = rows.model._meta
    order: _Order = []
    for name in rows.query.order_by or meta.ordering:
        plain = str(name).lstrip("-")
        field = meta.pk if plain == "pk" else meta.get_field(plain)
        if field in [known for known, _ in order]:  # Django names the list's own order twice
            continue
        order.append((field, str(name).startswith("-")))  # type: ignore[arg-type]
        if field is meta.pk:  # nothing after it can matter
            return order
    raise TypeError("a keyset needs an order with the primary key in it")


def _names(order: _Order) -> list[str]:
    return [f"-{field.attname}" if falls else field.attname for field, falls in order]


def _beyond(rows: QuerySet[Any], order: _Order, key: str) -> QuerySet[Any]:
    """The rows that come after the key."""
    parts = key.split(_BETWEEN)
    if len(parts) != len(order):
        raise ValueError("not a key of this list")
    values = [field.to_python(part) for (field, _), part in zip(order, parts, strict=True)]
    beyond, equal = Q(), Q()
    for (field, falls), value in zip(order, values, strict=True):
        past = Q(**{f"{field.attname}__{'lt' if falls else 'gt'}": value})
        beyond |= equal & past
        equal &= Q(**{field.attname: value})
    first, falls = order[0]  # said once more by itself: an index begins reading there
    bound = Q(**{f"{first.attname}__{'lte' if falls else 'gte'}": values[0]})
    return rows.filter(bound & beyond)


def _key(row: Model, order: _Order) -> str:
    return _BETWEEN.join(field.value_to_string(row) for field, _ in order)
