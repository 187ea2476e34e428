"""Audit: who did what to what, when. Read-only for everybody."""

from __future__ import annotations

import json
from typing import Any

from django.contrib import admin
from django.contrib.admin.utils import quote
from django.db.models import Q, QuerySet
from django.http import HttpRequest
from django.urls import NoReverseMatch, reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from unfold.contrib.filters.admin import DropdownFilter, RangeDateTimeFilter

from admin_ui.parts.formatting import json_block
from admin_ui.parts.read_only import HistoryAdmin, IndexedSearch
from admin_ui.parts.typed_decorators import column
from gpus.models import AuditEntry

_ACTORS = {"user": "people in the admin", "key": "API keys", "cli": "the command line"}
_PAGES = {
    "job": "jobs_job",
    "callback": "jobs_callback",
    "server": "gpus_server",
    "model": "gpus_modelconfig",
    "pool": "gpus_pool",
}
_TARGETS = (*_PAGES, "tenant", "key", "jobs", "system")
_DETAIL_SHOWN = 200


class _BeginFilter(DropdownFilter):  # type: ignore[misc]
    field = ""

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        value = self.value()
        return queryset.filter(**{f"{self.field}__startswith": f"{value}:"}) if value else queryset


class ActorFilter(_BeginFilter):
    title, parameter_name, field = "by", "by", "actor"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return list(_ACTORS.items())


class TargetFilter(_BeginFilter):
    title, parameter_name, field = "on", "on", "target"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(kind, kind) for kind in _TARGETS]


@admin.register(AuditEntry)
class AuditPages(IndexedSearch, HistoryAdmin):
    list_display = ("at", "actor", "deed", "on", "told")
    list_display_links = ("at",)
    list_filter = (ActorFilter, TargetFilter, ("at", RangeDateTimeFilter))
    search_fields = ("actor__exact",)
    search_help_text = "Exactly: a name, as in boss or flux-1; or with its kind, as in server:flux-1."
    ordering = ("-id",)
    sortable_by = ()
    fields = (("at", "actor"), ("deed", "on"), "detail_json")
    readonly_fields = ("deed", "on", "detail_json")

    @column("did")
    def deed(self, entry: AuditEntry) -> str:
        return entry.action.replace("_", " ")

    @column("to")
    def on(self, entry: AuditEntry) -> SafeString | str:
        kind, _, name = entry.target.partition(":")
        try:
            page = reverse(f"admin:{_PAGES[kind]}_change", args=[quote(name)])
        except (KeyError, NoReverseMatch):
            return entry.target
        return format_html('<a href="{}">{}</a>', page, entry.target)

    @column("detail")
    def told(self, entry: AuditEntry) -> str:
        words = ", ".join(f"{key}: {_short(value)}" for key, value in entry.detail.items())
        return words if len(words) <= _DETAIL_SHOWN else f"{words[:_DETAIL_SHOWN]}…"

    @column("detail")
    def detail_json(self, entry: AuditEntry) -> SafeString | str:
        return json_block(entry.detail)

    def find(self, rows: QuerySet[Any], term: str) -> QuerySet[Any]:
        actors = [term, *(f"{kind}:{term}" for kind in _ACTORS)]
        targets = [term, *(f"{kind}:{term}" for kind in _TARGETS)]
        return rows.filter(Q(actor__in=actors) | Q(target__in=targets))


def _short(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
