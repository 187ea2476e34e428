"""Read-only pages of workflows: definitions, versions, runs with their nodes, waits, events and notices."""

from __future__ import annotations

from collections import Counter
from typing import Any

from django.contrib import admin
from django.http import HttpRequest
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString

from admin_ui.parts.base_pages import HistoryAdmin, ReadOnlyAdmin, sees_payloads
from admin_ui.parts.formatting import badge, follower_link, job_link, json_block, run_link, span
from admin_ui.parts.typed_decorators import column
from jobs.models import EndNotice
from workflows.models import CachedOutput, MapChunk, MapState, Node, Run, RunEvent, Version, Wait, Workflow

STATE_LABELS = {
    "completed": "success",
    "failed": "danger",
    "running": "info",
    "cancelled": "warning",
}
"""Colours of the states of runs and nodes; the others are grey."""


@admin.register(Workflow)
class WorkflowPages(ReadOnlyAdmin):
    about = "Named definitions, stored by clients. Each change makes a new version; runs keep theirs."
    list_display = ("name", "tenant", "latest")
    list_select_related = ("tenant",)
    fields = ("name", "tenant", "latest")


@admin.register(Version)
class VersionPages(HistoryAdmin):
    about = "Versions of definitions. A version never changes."
    heavy = ("spec",)
    list_display = ("id", "workflow", "number", "created_at")
    list_select_related = ("workflow",)
    ordering = ("-id",)
    sortable_by = ()
    fields = (("workflow", "number"), "sha256", "created_at", "definition")
    readonly_fields = ("definition",)

    @column("definition")
    def definition(self, version: Version) -> SafeString | str:
        return json_block(version.spec)


@admin.register(Run)
class RunPages(HistoryAdmin):
    about = "Runs of workflows. Every model node of a run is a job."
    heavy = ("inputs", "output", "node_states", "kept_maps")
    list_display = ("id", "workflow", "state_label", "tenant", "round", "created_at", "took")
    list_filter = ("state",)
    list_select_related = ("tenant", "version__workflow")
    ordering = ("-id",)
    sortable_by = ()
    readonly_fields = (
        "workflow",
        "state_label",
        "took",
        "counts",
        "nodes_table",
        "shown_inputs",
        "shown_output",
    )

    def get_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        return (
            ("id", "state_label"),
            ("workflow", "tenant"),
            ("round", "priority"),
            ("created_at", "took"),
            ("deadline_at", "paused_at"),
            ("error_code", "error_node"),
            "error_message",
            "counts",
            "nodes_table",
            *(("shown_inputs", "shown_output") if sees_payloads(request) else ()),
        )

    @column("workflow")
    def workflow(self, run: Run) -> str:
        return str(run.version)

    @column("state")
    def state_label(self, run: Run) -> SafeString:
        return badge("paused" if run.paused_at and not run.finished_at else run.state, STATE_LABELS)

    @column("time")
    def took(self, run: Run) -> str:
        return span(run.created_at, run.finished_at)

    @column("nodes by state")
    def counts(self, run: Run) -> str:
        found = Counter(run.node_states.values())
        return ", ".join(f"{number} {state}" for state, number in sorted(found.items()))

    @column("nodes")
    def nodes_table(self, run: Run) -> SafeString:
        address = reverse("admin:workflows_node_changelist")
        return format_html('<a href="{}?run__id__exact={}">Nodes of this run</a>', address, run.id)

    @column("inputs")
    def shown_inputs(self, run: Run) -> SafeString | str:
        return json_block(run.inputs)

    @column("output")
    def shown_output(self, run: Run) -> SafeString | str:
        return json_block(run.output)


@admin.register(Node)
class NodePages(HistoryAdmin):
    about = "Nodes of runs, with the children of maps. A restarted node has a row for each round."
    heavy = ("settings", "output")
    list_display = ("id", "run_page", "key", "round", "kind", "state_label", "job_page", "code", "took")
    list_filter = ("state", "kind")
    ordering = ("-id",)
    sortable_by = ()
    readonly_fields = ("run_page", "job_page", "state_label", "took", "shown_settings", "shown_output")

    def lookup_allowed(self, lookup: str, value: Any, request: Any = None) -> bool:
        return lookup == "run__id__exact" or super().lookup_allowed(lookup, value, request)

    def get_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        return (
            ("run_page", "key"),
            ("kind", "state_label"),
            ("round", "job_page"),
            ("started_at", "took"),
            ("code", "detail"),
            *(("shown_settings", "shown_output") if sees_payloads(request) else ()),
        )

    @column("run")
    def run_page(self, node: Node) -> SafeString | str:
        return run_link(node.run_id)

    @column("job")
    def job_page(self, node: Node) -> SafeString | str:
        return job_link(node.job_id) if node.job_id else "—"

    @column("state")
    def state_label(self, node: Node) -> SafeString:
        return badge(node.state, STATE_LABELS)

    @column("time")
    def took(self, node: Node) -> str:
        return span(node.started_at, node.finished_at)

    @column("settings")
    def shown_settings(self, node: Node) -> SafeString | str:
        return json_block(node.settings)

    @column("output")
    def shown_output(self, node: Node) -> SafeString | str:
        return json_block(node.output)


@admin.register(Wait)
class WaitPages(HistoryAdmin):
    about = "Nodes that wait for a person, a signal or a time. They are answered through the API."
    heavy = ("options", "answer")
    list_display = ("node", "kind", "signal", "due_at", "answered_at", "answered_by")
    list_select_related = ("node",)
    ordering = ("-node_id",)
    sortable_by = ()

    def get_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        shown = ("options", "answer") if sees_payloads(request) else ()
        return ("node", ("kind", "signal"), "due_at", ("answered_at", "answered_by"), *shown)


@admin.register(MapState)
class MapPages(HistoryAdmin):
    about = "How far the maps of runs have come."
    heavy = ("todo",)
    list_display = ("node", "total", "next_index", "running", "completed", "failed")
    list_select_related = ("node",)
    ordering = ("-node_id",)
    sortable_by = ()
    fields = ("node", ("total", "next_index"), ("running", "completed", "failed"), "first_round")


@admin.register(MapChunk)
class MapChunkPages(HistoryAdmin):
    about = "The lists of maps, 500 items in a row."
    heavy = ("items",)
    list_display = ("id", "node", "first")
    list_select_related = ("node",)
    ordering = ("-id",)
    sortable_by = ()

    def get_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        return ("node", "first", *(("items",) if sees_payloads(request) else ()))


@admin.register(RunEvent)
class RunEventPages(HistoryAdmin):
    about = "The event log of runs."
    heavy = ("data",)
    list_display = ("id", "run_page", "seq", "type", "at")
    ordering = ("-id",)
    sortable_by = ()
    fields = (("run_page", "seq"), ("type", "at"), "data")
    readonly_fields = ("run_page",)

    @column("run")
    def run_page(self, event: RunEvent) -> SafeString | str:
        return run_link(event.run_id)


@admin.register(CachedOutput)
class CachedOutputPages(HistoryAdmin):
    about = "Jobs whose results equal nodes take instead of running again, until they expire."
    list_display = ("key", "job_page", "tenant", "expires_at")
    list_select_related = ("tenant",)
    ordering = ("-pk",)
    sortable_by = ()
    fields = ("key", "job_page", "tenant", "expires_at")
    readonly_fields = ("job_page",)

    @column("job")
    def job_page(self, cached: CachedOutput) -> SafeString | str:
        return job_link(cached.job_id)


@admin.register(EndNotice)
class EndNoticePages(HistoryAdmin):
    about = "Ends of jobs that their workflow run has not read yet. A row lives for milliseconds."
    list_display = ("id", "follower", "ended_id", "state", "at")
    ordering = ("-id",)
    sortable_by = ()
    fields = ("follower", "ended_id", ("state", "round"), "at")
    readonly_fields = ("follower",)

    @column("followed by")
    def follower(self, notice: EndNotice) -> SafeString | str:
        return follower_link(notice.followed_by)
