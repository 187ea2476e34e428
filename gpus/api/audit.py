"""Who did what to what, when."""

from __future__ import annotations

import re

from drf_spectacular.utils import OpenApiParameter
from rest_framework.request import Request
from rest_framework.response import Response

from foundation.http_api.openapi import described
from foundation.http_api.pages import PARAMETERS, CursorPages
from foundation.http_api.parameters import allow_only, text_parameter, text_schema
from gpus.api.base import RegistryView
from gpus.models import AuditEntry

_FILTERS = ("actor", "target", "action")
_MAX_LENGTH = 200


class AuditPages(CursorPages):
    ordering = "-id"
    position = re.compile(r"[0-9]{1,18}\Z")


class Audit(RegistryView):
    needs = {"GET": "gpus.view_auditentry"}

    @described(
        "list_audit_entries",
        "What operators did, the last first",
        answers={200: "AuditPage"},
        refusals=(400, 403),
        parameters=(*(OpenApiParameter(name, text_schema(_MAX_LENGTH)) for name in _FILTERS), *PARAMETERS),
        tag="admin",
        description="Filters match exactly: actor=user:ada, target=server:flux-1, action=switch_server.",
    )
    def get(self, request: Request) -> Response:
        allow_only(request, (*_FILTERS, "cursor", "limit"))
        asked = {name: text_parameter(request, name, max_length=_MAX_LENGTH) for name in _FILTERS}
        rows = AuditEntry.objects.filter(
            **{name: value for name, value in asked.items() if value is not None}
        )
        pages = AuditPages()
        page = pages.paginate_queryset(rows, request, view=self) or []
        return pages.get_paginated_response([_entry(row) for row in page])


def _entry(row: AuditEntry) -> dict[str, object]:
    fields = ("id", "at", "actor", "action", "target", "detail")
    return {name: getattr(row, name) for name in fields}
