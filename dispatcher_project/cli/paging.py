"""Pages of a list whose newest row is first: the options `--before` and `--limit`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from django.db.models import Model, QuerySet

Row = TypeVar("Row", bound=Model)


def newest_page(rows: QuerySet[Row], options: Mapping[str, Any]) -> tuple[list[Row], str | None]:
    """Return the rows that the options select, and the value of `--before` for the next page; None: this page
    is the last one."""
    if options["before"] is not None:
        rows = rows.filter(id__lt=options["before"].upper())
    found = list(rows.order_by("-id")[: options["limit"] + 1])
    page = found[: options["limit"]]
    return page, page[-1].pk if len(found) > len(page) else None
