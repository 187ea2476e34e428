"""Pages of workflows: definitions with their versions, runs with their nodes, waits, events and notices."""

from __future__ import annotations

from collections import Counter
from typing import Any

from django.contrib import admin
from django.db.models import Q, QuerySet
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import reverse
from django.utils import timezone
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from unfold.contrib.filters.admin import ChoicesDropdownFilter, DropdownFilter

from admin_ui.pages.definition_diff import shown_changes
from admin_ui.pages.run import RunDetail
from admin_ui.pages.start_run import StartRunPage
from admin_ui.parts.base_pages import HistoryAdmin, IndexedSearch, ReadOnlyAdmin, sees_payloads
from admin_ui.parts.formatting import (
    RUN_LABELS,
    badge,
    follower_link,
    job_link,
    json_block,
    list_link,
    page_link,
    run_link,
    span,
    tenant_link,
    time_and_age,
)
from admin_ui.parts.typed_decorators import column, operation
from foundation.ids import is_id
from jobs.models import EndNotice
from workflows.domain.plan import NodeKind
from workflows.execution.long_outputs import shown_output
from workflows.models import (
    CachedOutput,
    MapChunk,
    MapFile,
    MapState,
    Node,
    Run,
    RunEvent,
    RunTag,
    SentSignal,
    Version,
    Wait,
    Workflow,
)
from workflows.reports.runs import ANY, NONE, PAUSED, WAITING, RunFilter, has_tag

VERSIONS_LISTED = 50


@admin.register(Workflow)
class WorkflowPages(ReadOnlyAdmin):
    noun = ("definition", "definitions")
    about = "Named definitions, stored by clients. Each change makes a new version; runs keep theirs."
    list_display = ("name", "tenant_page", "latest", "runs")
    list_select_related = ("tenant",)
    search_fields = ("name__exact",)
    search_help_text = "Exact match of a name."
    fields = (("name", "tenant_page"), ("latest", "runs"), "versions")
    readonly_fields = ("tenant_page", "runs", "versions")
    actions_detail = ("start_newest",)

    @operation("Start a run", permissions=["start"], icon="play_arrow")
    def start_newest(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Go to the form of the newest version."""
        workflow = self.get_object(request, object_id)
        newest = workflow and workflow.versions.order_by("-number").only("pk").first()
        if newest is None:
            raise Http404
        return redirect(reverse("admin:workflows_version_start_one", args=[newest.pk]))

    def has_start_permission(self, request: HttpRequest, object_id: str | None = None) -> bool:
        return bool(request.user.has_perm("workflows.change_run"))

    @column("tenant")
    def tenant_page(self, workflow: Workflow) -> SafeString | str:
        return tenant_link(workflow.tenant)

    @column("runs")
    def runs(self, workflow: Workflow) -> SafeString:
        query = {"version__workflow__id__exact": workflow.pk}
        return list_link("workflows_run", query, "Runs")

    @column("versions")
    def versions(self, workflow: Workflow) -> SafeString:
        """Links to the latest versions; each page shows what it changed."""
        rows = workflow.versions.order_by("-number").only("id", "number", "created_at")[:VERSIONS_LISTED]
        lines = format_html_join(
            "",
            "<li>{} <span>{}</span></li>",
            (
                (
                    page_link("workflows_version", row.pk, f"version {row.number}"),
                    time_and_age(row.created_at),
                )
                for row in rows
            ),
        )
        return format_html('<ul class="versions">{}</ul>', lines)


@admin.register(Version)
class VersionPages(StartRunPage, HistoryAdmin):
    about = "Versions of definitions. A version never changes."
    heavy = ("spec",)
    list_display = ("id", "workflow", "number", "created_at")
    list_select_related = ("workflow",)
    ordering = ("-id",)
    sortable_by = ()
    fields = (("workflow_page", "number"), ("created_at", "runs"), "sha256", "changes", "definition")
    readonly_fields = ("workflow_page", "runs", "changes", "definition")
    actions_detail = ("start_one",)

    @column("workflow")
    def workflow_page(self, version: Version) -> SafeString | str:
        return page_link("workflows_workflow", version.workflow_id, version.workflow.name)

    @column("runs")
    def runs(self, version: Version) -> SafeString:
        return list_link("workflows_run", {"version__id__exact": version.pk}, "Runs of this version")

    @column("changes")
    def changes(self, version: Version) -> SafeString | str:
        before = version.workflow.versions.filter(number=version.number - 1).first()
        return "The first version." if before is None else shown_changes(before.spec, version.spec)

    @column("definition")
    def definition(self, version: Version) -> SafeString | str:
        return json_block(version.spec)


class ParentFilter(DropdownFilter):  # type: ignore[misc]
    """Without a choice, sub-runs are left out, unless a search or a link asks for a run or a workflow."""

    title = "sub-runs"
    parameter_name = "parent"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        given = request.GET.get("parent", "")
        of_run = [(given, f"of {given}")] if is_id(given) else []
        return [(ANY, "all runs with their sub-runs"), *of_run]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        asks = any(name == "q" or name.startswith("version__") for name in request.GET)
        waiting = request.GET.get("waits") == "open"
        return RunFilter(parent=self.value() or (ANY if asks or waiting else NONE)).of(queryset)


class RunWaitFilter(DropdownFilter):  # type: ignore[misc]
    """What keeps a run that has not ended."""

    title = "waits"
    parameter_name = "waits"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [("open", "for a person or a signal"), ("paused", "until it is resumed")]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        conditions = {"open": WAITING, "paused": PAUSED}
        return queryset.filter(conditions[value]) if (value := self.value()) in conditions else queryset


@admin.register(Run)
class RunPages(IndexedSearch, RunDetail):
    about = "Runs of workflows. Every model node of a run is a job."
    heavy = ("inputs", "output", "kept_maps", "error_message")
    list_display = ("id", "state_label", "workflow", "created", "tenant_page", "counts", "error_code", "took")
    list_filter = (("state", ChoicesDropdownFilter), ParentFilter, RunWaitFilter)
    list_select_related = ("tenant", "version__workflow")
    search_fields = ("id",)
    search_help_text = "Exact match: a run's id, the name of a workflow, or a tag."
    ordering = ("-id",)
    sortable_by = ()
    actions_detail = ("pause_one", "resume_one", "cancel_one", "restart_one", "erase_one")

    def lookup_allowed(self, lookup: str, value: Any, request: Any = None) -> bool:
        ours = ("version__id__exact", "version__workflow__id__exact")
        return lookup in ours or super().lookup_allowed(lookup, value, request)

    def find(self, rows: QuerySet[Any], term: str) -> QuerySet[Any]:
        if is_id(term.upper()):
            return rows.filter(id=term.upper())
        if Workflow.objects.filter(name=term).exists():
            return rows.filter(Q(version__workflow__name=term) | has_tag(term))
        return rows.filter(has_tag(term))

    @column("workflow")
    def workflow(self, run: Run) -> SafeString | str:
        return page_link("workflows_version", run.version_id, str(run.version))

    @column("state")
    def state_label(self, run: Run) -> SafeString:
        return badge("paused" if run.is_paused else run.state, RUN_LABELS)

    @column("created")
    def created(self, run: Run) -> SafeString | str:
        return time_and_age(run.created_at)

    @column("tenant")
    def tenant_page(self, run: Run) -> SafeString | str:
        return tenant_link(run.tenant)

    @column("time")
    def took(self, run: Run) -> str:
        return span(run.created_at, run.finished_at)

    @column("nodes by state")
    def counts(self, run: Run) -> str:
        found = Counter(run.node_states.values())
        return ", ".join(f"{number} {state}" for state, number in sorted(found.items()))


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
        return lookup in ("run__id__exact", "base") or super().lookup_allowed(lookup, value, request)

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
        return badge(node.state, RUN_LABELS)

    @column("time")
    def took(self, node: Node) -> str:
        return span(node.started_at, node.finished_at)

    @column("settings")
    def shown_settings(self, node: Node) -> SafeString | str:
        return json_block(node.settings)

    @column("output")
    def shown_output(self, node: Node) -> SafeString | str:
        return json_block(shown_output(node))


class OpenWaitFilter(DropdownFilter):  # type: ignore[misc]
    """Without a choice the list is an inbox: questions to people that have no answer yet."""

    title = "waits"
    parameter_name = "waits"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [("open", "open, of all kinds"), ("answered", "answered or ended"), ("all", "all")]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        value = self.value()
        if value == "all":
            return queryset
        if value == "answered":
            return queryset.filter(answered_at__isnull=False)
        still = queryset.filter(answered_at=None)
        return still if value == "open" else still.filter(kind=NodeKind.HUMAN.value)


@admin.register(Wait)
class WaitPages(HistoryAdmin):
    noun = ("question", "questions")
    about = (
        "Runs that wait for the answer of a person. A question leads to its form on the page of the run; a "
        "filter shows waits for signals and timers, too."
    )
    heavy = ("answer",)
    list_display = (
        "question",
        "run_page",
        "workflow",
        "tenant_page",
        "since",
        "until",
        "kind",
        "may_answer",
        "answered_by",
    )
    list_display_links = None
    list_filter = (OpenWaitFilter,)
    list_select_related = ("node__run__version__workflow", "node__run__tenant")
    ordering = ("-node_id",)
    sortable_by = ()
    readonly_fields = ("question", "run_page")

    def get_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        shown = ("options", "answer") if sees_payloads(request) else ()
        return (
            ("question", "run_page"),
            ("kind", "signal"),
            "due_at",
            ("answered_at", "answered_by"),
            *shown,
        )

    @column("question")
    def question(self, wait: Wait) -> SafeString:
        """A link to the form on the run's page."""
        title = wait.options.get("title") if isinstance(wait.options, dict) else None
        signal = wait.signal and f"Signal {wait.signal}"
        text = str(title or signal or wait.node.key)[:80]
        page = reverse("admin:workflows_run_change", args=[wait.node.run_id])
        return format_html('<a href="{}#wait-{}">{}</a>', page, wait.node_id, text)

    @column("run")
    def run_page(self, wait: Wait) -> SafeString | str:
        return run_link(wait.node.run_id)

    @column("workflow")
    def workflow(self, wait: Wait) -> str:
        return str(wait.node.run.version)

    @column("tenant")
    def tenant_page(self, wait: Wait) -> SafeString | str:
        return tenant_link(wait.node.run.tenant)

    @column("since")
    def since(self, wait: Wait) -> SafeString | str:
        return time_and_age(wait.node.started_at)

    @column("for")
    def may_answer(self, wait: Wait) -> str:
        """The API keys that may answer besides operators."""
        named = wait.options.get("answer_by") if isinstance(wait.options, dict) else None
        if wait.kind != NodeKind.HUMAN:
            return "–"
        return ", ".join(named)[:80] if named else "anyone"

    @column("expires in")
    def until(self, wait: Wait) -> str:
        return "–" if wait.due_at is None else span(timezone.now(), max(wait.due_at, timezone.now()))


class _MapPages(HistoryAdmin):
    """Base of the pages of what a map has: rows of its node."""

    list_select_related = ("node",)
    ordering: tuple[str, ...] = ("-node_id",)
    sortable_by = ()


@admin.register(MapState)
class MapStatePages(_MapPages):
    noun = ("map", "maps")
    about = "How far the maps of runs have come."
    heavy = ("todo",)
    list_display = ("node", "total", "next_index", "running", "completed", "failed")
    fields = ("node", ("total", "next_index"), ("running", "completed", "failed"), "first_round")


@admin.register(MapChunk)
class MapChunkPages(_MapPages):
    noun = ("map list", "map lists")
    about = "The lists of maps, 500 items in a row."
    heavy = ("items",)
    list_display = ("id", "node", "first")
    ordering = ("-id",)

    def get_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        return ("node", "first", *(("items",) if sees_payloads(request) else ()))


@admin.register(MapFile)
class MapFilePages(_MapPages):
    about = "The artifacts of JSON lines whose lines are the items of maps."
    heavy = ("starts",)
    list_display = ("node", "artifact", "items", "line", "offset", "is_read")
    fields = ("node", "artifact", ("items", "line"), ("offset", "is_read"))


@admin.register(RunEvent)
class RunEventPages(HistoryAdmin):
    about = "The event log of runs."
    heavy = ("data",)
    list_display = ("id", "run_page", "seq", "type", "at")
    search_fields = ("run__id__exact",)
    search_help_text = "Exact match of a run's id."
    ordering = ("-id",)
    sortable_by = ()
    fields = (("run_page", "seq"), ("type", "at"), "data")
    readonly_fields = ("run_page",)

    @column("run")
    def run_page(self, event: RunEvent) -> SafeString | str:
        return run_link(event.run_id)


@admin.register(RunTag)
class RunTagPages(HistoryAdmin):
    about = "Tags of runs and their sub-runs, by which lists find them."
    noun = ("tag of runs", "tags of runs")
    list_display = ("tag", "run_page", "tenant")
    list_select_related = ("tenant",)
    search_fields = ("tag__exact", "run__id__exact")
    search_help_text = "Exact match of a tag, or of a run's id."
    ordering = ("-id",)
    sortable_by = ()
    fields = ("tag", "run_page", "tenant")
    readonly_fields = ("run_page",)

    @column("run")
    def run_page(self, tag: RunTag) -> SafeString | str:
        return run_link(tag.run_id)


@admin.register(SentSignal)
class SentSignalPages(HistoryAdmin):
    noun = ("signal", "signals")
    about = "Signals and answers that were sent with an Idempotency-Key: each has an effect once."
    list_display = ("key", "tenant", "taken", "sent_at")
    list_select_related = ("tenant",)
    search_fields = ("key__exact",)
    search_help_text = "Exact match of an idempotency key."
    ordering = ("-id",)
    sortable_by = ()
    fields = (("key", "tenant"), ("taken", "sent_at"), "fingerprint")


@admin.register(CachedOutput)
class CachedOutputPages(HistoryAdmin):
    noun = ("cached result", "cached results")
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
