"""Cursor pages, read strictly. A row that comes or goes while somebody pages shifts nothing."""

from __future__ import annotations

import re
from base64 import b64decode
from typing import Any

from drf_spectacular.utils import OpenApiParameter
from rest_framework.exceptions import NotFound
from rest_framework.pagination import Cursor, CursorPagination

from foundation.http_api.problems import parameter_problem

_PARTS = re.compile(rb"[orp]=[0-9A-Za-z._-]+(&[orp]=[0-9A-Za-z._-]+)*\Z")

PARAMETERS = (
    OpenApiParameter("cursor", str, description="From `next` or `previous` of another page."),
    OpenApiParameter(
        "limit", {"type": "integer", "minimum": 1, "maximum": 200}, description="Rows per page."
    ),
)


class CursorPages(CursorPagination):
    """limit: 1 to 200. ordering: by one unique field; position: what its values look like in a cursor."""

    position: re.Pattern[str]
    page_size = 50
    max_page_size = 200
    page_size_query_param = "limit"

    def decode_cursor(self, request: Any) -> Cursor | None:
        encoded = request.query_params.get(self.cursor_query_param)
        try:
            if encoded is not None and not _PARTS.match(b64decode(encoded, validate=True)):
                raise _bad_cursor()
            cursor = super().decode_cursor(request)
        except (NotFound, ValueError):
            raise _bad_cursor() from None
        place = None if cursor is None else cursor.position
        if place is not None and not self.position.match(str(place)):
            raise _bad_cursor()
        return cursor

    def get_page_size(self, request: Any) -> int:
        asked = request.query_params.get(self.page_size_query_param)
        if asked is None:
            return self.page_size
        if not re.match(r"[0-9]{1,4}\Z", asked) or not 1 <= int(asked) <= self.max_page_size:
            raise parameter_problem("limit", f"Must be a number from 1 to {self.max_page_size}.")
        return int(asked)


def _bad_cursor() -> Exception:
    return parameter_problem("cursor", "Not a cursor of this list.", code="bad_cursor")
