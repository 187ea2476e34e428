"""The audit log, read-only for every user, and the versions of models, with a button to revert to one."""

from __future__ import annotations

import json
from typing import Any

from django.contrib import admin, messages
from django.contrib.admin.utils import quote
from django.core.exceptions import PermissionDenied
from django.db.models import OuterRef, Q, QuerySet, Subquery
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import NoReverseMatch, URLPattern, reverse
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from unfold.contrib.filters.admin import DropdownFilter, RangeDateTimeFilter, RelatedDropdownFilter

from admin_ui.actions.operations import LATER, actor, back_to
from admin_ui.parts.base_pages import HistoryAdmin, IndexedSearch, ReadOnlyAdmin
from admin_ui.parts.formatting import json_block
from admin_ui.parts.typed_decorators import column, operation
from gpus.models import AuditEntry, ConfigVersion
from gpus.registry.controls import revert_model
from gpus.registry.model_fields import RegistryRefused, read_fields
from jobs import ports

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
MAX_SHOWN = 20


class _KindFilter(DropdownFilter):  # type: ignore[misc]
    """Filters a ``kind:name`` field by its kind."""

    field = ""

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        value = self.value()
        return queryset.filter(**{f"{self.field}__startswith": f"{value}:"}) if value else queryset


class ActorFilter(_KindFilter):
    title, parameter_name, field = "actor", "by", "actor"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return list(_ACTORS.items())


class TargetFilter(_KindFilter):
    title, parameter_name, field = "target", "on", "target"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(kind, kind) for kind in _TARGETS]


@admin.register(AuditEntry)
class AuditPages(IndexedSearch, HistoryAdmin):
    about = "Changes by people, API keys and the command line. Entries can't be changed or deleted."
    list_display = ("at", "actor", "action_text", "target_link", "detail_text")
    list_display_links = ("at",)
    list_filter = (ActorFilter, TargetFilter, ("at", RangeDateTimeFilter))
    search_fields = ("actor__exact",)
    search_help_text = "Exact match: a name, such as boss or flux-1, or kind and name, such as server:flux-1."
    ordering = ("-id",)
    sortable_by = ()
    fields = (("at", "actor"), ("action_text", "target_link"), "detail_json")
    readonly_fields = ("action_text", "target_link", "detail_json")

    @column("action")
    def action_text(self, entry: AuditEntry) -> str:
        return entry.action.replace("_", " ")

    @column("target")
    def target_link(self, entry: AuditEntry) -> SafeString | str:
        kind, _, name = entry.target.partition(":")
        try:
            page = reverse(f"admin:{_PAGES[kind]}_change", args=[quote(name)])
        except (KeyError, NoReverseMatch):
            return entry.target
        return format_html('<a href="{}">{}</a>', page, entry.target)

    @column("detail")
    def detail_text(self, entry: AuditEntry) -> str:
        text = ", ".join(f"{key}: {_short(value)}" for key, value in entry.detail.items())
        return text if len(text) <= _DETAIL_SHOWN else f"{text[:_DETAIL_SHOWN]}…"

    @column("detail")
    def detail_json(self, entry: AuditEntry) -> SafeString | str:
        return json_block(entry.detail)

    def find(self, rows: QuerySet[Any], term: str) -> QuerySet[Any]:
        actors = [term, *(f"{kind}:{term}" for kind in _ACTORS)]
        targets = [term, *(f"{kind}:{term}" for kind in _TARGETS)]
        return rows.filter(Q(actor__in=actors) | Q(target__in=targets))


def _short(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


@admin.register(ConfigVersion)
class VersionPages(ReadOnlyAdmin):
    noun = ("model version", "model versions")
    about = "Each change of a model's fields. Open a version to see its changes and to revert to it."
    list_display = ("__str__", "at", "actor", "changes")
    list_filter = (("model", RelatedDropdownFilter),)
    search_fields = ("model__name__exact",)
    search_help_text = "Exact match of a model's name."
    ordering = ("-id",)
    sortable_by = ()
    actions_detail = ("revert",)
    fields = (("model", "number"), ("at", "actor"), "changes", "revert_changes", "fields_json")
    readonly_fields = ("changes", "revert_changes", "fields_json")

    def get_urls(self) -> list[URLPattern]:
        return [
            *self.routes(("of/<str:model>/", self.of_model, "gpus_configversion_of")),
            *super().get_urls(),
        ]

    def of_model(self, request: HttpRequest, model: str) -> HttpResponse:
        """The latest versions as a fragment of the model's own page."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        rows = self.get_queryset(request).filter(model=model).order_by("-number")[:MAX_SHOWN]
        may_revert = request.user.has_perm("gpus.change_modelconfig")
        versions = [(row, self.changes(row), may_revert and _now(row) != row.fields) for row in rows]
        return TemplateResponse(request, "admin_ui/versions.html", {"versions": versions, "model": model})

    @operation(
        "Revert to this version",
        permissions=["revert"],
        icon="settings_backup_restore",
        confirm=("Revert the model?", "All its fields get the values of this version.", "Yes, revert"),
    )
    def revert(self, request: HttpRequest, form: Any, object_id: str) -> HttpResponse:
        version = ConfigVersion.objects.get(pk=object_id)
        try:
            done = revert_model(
                version.model_id, version.number, by=actor(request), leases=ports.production_ports().leases
            )
        except RegistryRefused as refusal:
            messages.error(request, str(refusal))
            return back_to(request, reverse("admin:gpus_configversion_change", args=[object_id]))
        messages.success(request, f"{version.model_id} reverted to version {version.number}.")
        if not done.mirrored:
            messages.warning(request, LATER)
        return back_to(request, reverse("admin:gpus_modelconfig_change", args=[quote(version.model_id)]))

    def has_revert_permission(self, request: HttpRequest, object_id: Any = None) -> bool:
        """Return True if the user may change models and the revert would change a field."""
        if not request.user.has_perm("gpus.change_modelconfig"):
            return False
        version = self.get_object(request, object_id)  # None also for a text that is no id
        return version is not None and _now(version) != version.fields

    @column("changes")
    def changes(self, version: Any) -> SafeString | str:
        return changes(version.fields_before, version.fields)

    @column("a revert would change")
    def revert_changes(self, version: ConfigVersion) -> SafeString | str:
        return changes(_now(version), version.fields)

    @column("all fields")
    def fields_json(self, version: ConfigVersion) -> SafeString | str:
        return json_block(version.fields)

    def get_queryset(self, request: HttpRequest) -> QuerySet[ConfigVersion]:
        return _with_fields_before(super().get_queryset(request)).select_related("model__pool")


def changes(before: dict[str, Any] | None, after: dict[str, Any]) -> SafeString | str:
    """Return the changed fields with old and new values as HTML; a dash if the versions are equal.

    before: None for the first version.
    """
    if before is None:
        return "created"
    names = [name for name in {**before, **after} if before.get(name) != after.get(name)]
    lines = ((name, _text(before.get(name)), _text(after.get(name))) for name in names)
    pattern = "<li><b>{}</b> <del>{}</del> → <ins>{}</ins></li>"
    return format_html('<ul class="changes">{}</ul>', format_html_join("", pattern, lines)) if names else "–"


def _with_fields_before(rows: QuerySet[ConfigVersion]) -> QuerySet[ConfigVersion]:
    earlier = ConfigVersion.objects.filter(model=OuterRef("model"), number__lt=OuterRef("number"))
    return rows.annotate(fields_before=Subquery(earlier.order_by("-number").values("fields")[:1]))


def _now(version: ConfigVersion) -> dict[str, Any]:
    return dict(read_fields(version.model, version.model.pool))


def _text(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, sort_keys=True)
    return text if len(text) <= 300 else f"{text[:300]}…"
