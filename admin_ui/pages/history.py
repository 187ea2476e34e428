"""Read-only pages: attempts, events, and the small tables behind the API."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from django.contrib import admin
from django.db.models import Q, QuerySet
from django.http import HttpRequest, HttpResponse
from django.utils.formats import date_format
from django.utils.html import format_html_join
from django.utils.safestring import SafeString

from admin_ui.parts.base_pages import (
    HistoryAdmin,
    IndexedSearch,
    ReadOnlyAdmin,
    sees_payloads,
    without_bodies,
)
from admin_ui.parts.filters import (
    AttemptStateFilter,
    ErrorCodeFilter,
    EventTypeFilter,
    ModelFilter,
    ServerFilter,
)
from admin_ui.parts.formatting import (
    attempt_badge,
    job_link,
    json_block,
    model_link,
    seconds,
    server_link,
    span,
)
from admin_ui.parts.typed_decorators import column
from foundation.ids import ID_LENGTH
from gpus.models import FleetIndex, Process
from gpus.protocol import FIRST_LAYOUT
from gpus.registry.layouts import read_index_states
from gpus.registry.queries import fleets
from jobs.events.hub import shown_data
from jobs.models import (
    Attempt,
    Event,
    IdempotencyKey,
    JobTag,
    PurgeLedger,
    PushedResult,
    Rollup,
    SweepRun,
    TagUsage,
    Tally,
    WorkerSign,
)
from jobs.reports.rollups import BOUNDS_SECONDS, EVER

RECENT = 50_000
"""Latest attempts that are searched for a GPU server's own run id."""


@admin.register(Attempt)
class AttemptPages(IndexedSearch, HistoryAdmin):
    about = "Each start of a job on a slot. A job that is retried or interrupted has several attempts."
    list_display = (
        "id",
        "job_page",
        "state_label",
        "where",
        "model_page",
        "error_code",
        "started_at",
        "ran",
    )
    list_filter = (AttemptStateFilter, ServerFilter, ModelFilter, ErrorCodeFilter)
    search_fields = ("id__exact",)
    search_help_text = "Exact match: an attempt's id, a job's id, or the GPU server's own id of a recent run."
    ordering = ("-id",)
    sortable_by = ()
    fields = (
        ("id", "state_label"),
        ("job_page", "number"),
        ("round", "epoch"),
        ("where", "model"),
        ("worker", "remote_id"),
        "usage",
        ("started_at", "finished_at"),
        ("ran", "gpu_time"),
        ("error_code", "error_message"),
        ("counted", "slot_freed"),
        "evidence",
    )
    readonly_fields = ("job_page", "state_label", "where", "ran", "gpu_time")

    def find(self, rows: QuerySet[Any], term: str) -> QuerySet[Any]:
        """Our ids are found by index; `remote_id` has none and is searched in the latest attempts only."""
        ours = Q(id=term.upper()) | Q(job_id=term.upper())
        if len(term) == ID_LENGTH and Attempt.objects.filter(ours).exists():
            return rows.filter(ours)
        ids = Attempt.objects.order_by("-id").values_list("id", flat=True)
        oldest = ids[RECENT : RECENT + 1].first() or ""
        return rows.filter(remote_id=term, id__gt=oldest)

    @column("state")
    def state_label(self, attempt: Attempt) -> SafeString:
        return attempt_badge(attempt.state)

    @column("job")
    def job_page(self, attempt: Attempt) -> SafeString | str:
        return job_link(attempt.job_id)

    @column("slot")
    def where(self, attempt: Attempt) -> SafeString | str:
        return server_link(attempt.server, f"{attempt.server}/{attempt.slot}")

    @column("model")
    def model_page(self, attempt: Attempt) -> SafeString | str:
        return model_link(attempt.model)

    @column("run time")
    def ran(self, attempt: Attempt) -> str:
        return span(attempt.started_at, attempt.finished_at)

    @column("GPU time")
    def gpu_time(self, attempt: Attempt) -> str:
        return seconds(attempt.gpu_seconds)


@admin.register(Event)
class EventPages(HistoryAdmin):
    about = "The event log of all jobs, which event streams and charts read."
    heavy = ("data",)
    list_display = ("id", "job_page", "seq", "type", "at")
    list_filter = (EventTypeFilter,)
    search_fields = ("job__id__exact",)
    search_help_text = "Exact match of a job's id."
    ordering = ("-id",)
    sortable_by = ()
    fields = (("job_page", "seq"), ("type", "at"), "data_json")
    readonly_fields = ("job_page", "data_json", "data_without_output")

    @column("job")
    def job_page(self, event: Event) -> SafeString | str:
        return job_link(event.job_id)

    @column("data")
    def data_json(self, event: Event) -> SafeString | str:
        return json_block(event.data)

    @column("data")
    def data_without_output(self, event: Event) -> SafeString | str:
        return json_block(shown_data(event.type, event.data, with_output=False))

    def get_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        fields = super().get_fields(request, obj)
        if sees_payloads(request):
            return fields
        return ["data_without_output" if name == "data_json" else name for name in fields]


@admin.register(IdempotencyKey)
class IdempotencyKeyPages(HistoryAdmin):
    about = "Idempotency keys of submits and the jobs they created."
    heavy = ("batch",)
    list_display = ("key", "tenant", "job_page")
    list_select_related = ("tenant",)
    search_fields = ("key__exact", "job__id__exact")
    ordering = ("-id",)
    sortable_by = ()
    fields = ("key", "tenant", "job_page", "fingerprint", "batch_json")
    readonly_fields = ("job_page", "batch_json")

    @column("job")
    def job_page(self, key: IdempotencyKey) -> SafeString | str:
        return job_link(key.job_id)

    @column("batch")
    def batch_json(self, key: IdempotencyKey) -> SafeString | str:
        return json_block(key.batch)


@admin.register(PushedResult)
class PushedResultPages(HistoryAdmin):
    about = "Results that GPU servers pushed and that a worker has not processed yet."
    heavy = ("body",)
    list_display = ("attempt_id", "job_page", "received_at")
    search_fields = ("attempt_id__exact", "job_id__exact")
    ordering = ("-attempt_id",)
    sortable_by = ()
    fields = ("attempt_id", "job_page", "received_at", "body_json")
    readonly_fields = ("job_page", "body_json")

    @column("job")
    def job_page(self, pushed: PushedResult) -> SafeString | str:
        return job_link(pushed.job_id)

    def get_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        return without_bodies(request, super().get_fields(request, obj))

    @column("body")
    def body_json(self, pushed: PushedResult) -> SafeString | str:
        return json_block(pushed.body)


@admin.register(JobTag)
class JobTagPages(HistoryAdmin):
    noun = ("tag", "tags")
    list_display = ("tag", "job_page")
    search_fields = ("tag__exact", "job__id__exact")
    ordering = ("-id",)
    sortable_by = ()
    fields = ("tag", "job_page")
    readonly_fields = ("job_page",)

    @column("job")
    def job_page(self, tag: JobTag) -> SafeString | str:
        return job_link(tag.job_id)


@admin.register(PurgeLedger)
class PurgeLedgerPages(ReadOnlyAdmin):
    about = "Jobs deleted by retention, by tenant and final state, so that totals stay verifiable."
    list_display = ("tenant", "state", "count")
    list_select_related = ("tenant",)
    search_fields = ("tenant__name__exact",)
    ordering = ("tenant_id", "state")


@admin.register(Rollup)
class RollupPages(HistoryAdmin):
    about = "Sums of ended jobs per span of time, model and tenant. Charts and usage reports read them."
    list_display = ("begin", "length", "model", "tenant", "completed", "failed", "cancelled", "gpu_time")
    list_select_related = ("tenant",)
    list_filter = (ModelFilter,)
    search_fields = ("model__exact", "tenant__name__exact")
    search_help_text = "Exact match: a model or a tenant."
    ordering = ("-id",)
    sortable_by = ()
    fields = (
        ("begin", "length"),
        ("model", "tenant"),
        ("completed", "failed"),
        ("cancelled", "gpu_time"),
        "wait_times",
        "run_times",
    )
    readonly_fields = ("begin", "length", "gpu_time", "wait_times", "run_times")

    @column("from")
    def begin(self, row: Rollup) -> str:
        return "the first job" if row.span_seconds == EVER else date_format(row.at, "DATETIME_FORMAT")

    @column("span")
    def length(self, row: Rollup) -> str:
        return "all time" if row.span_seconds == EVER else str(timedelta(seconds=row.span_seconds))

    @column("GPU-seconds")
    def gpu_time(self, row: Rollup) -> str:
        return f"{row.gpu_seconds:,.1f}"

    @column("jobs by wait time")
    def wait_times(self, row: Rollup) -> SafeString:
        return _histogram(row.waits)

    @column("jobs by run time")
    def run_times(self, row: Rollup) -> SafeString:
        return _histogram(row.runs)


def _histogram(counts: Sequence[int]) -> SafeString:
    """Return the buckets with jobs in them, by their upper bounds."""
    names = [*(f"up to {seconds(bound)}" for bound in BOUNDS_SECONDS), "longer"]
    found = [(name, f"{count:,}") for name, count in zip(names, counts, strict=False) if count]
    return format_html_join("", "<div>{}: {}</div>", found or [("none", 0)])


@admin.register(TagUsage)
class TagUsagePages(HistoryAdmin):
    noun = ("usage by tag", "usage by tag")
    about = (
        "Ended jobs and GPU-seconds per day, tenant and tag. A job with several tags counts for each of them."
    )
    list_display = ("day", "tenant", "tag", "completed", "failed", "cancelled", "gpu_time")
    list_select_related = ("tenant",)
    search_fields = ("tag__exact", "tenant__name__exact")
    search_help_text = "Exact match: a tag or a tenant."
    ordering = ("-id",)
    sortable_by = ()
    fields = (("day", "tenant"), ("tag", "completed"), ("failed", "cancelled"), "gpu_time")
    readonly_fields = ("gpu_time",)

    @column("GPU-seconds")
    def gpu_time(self, row: TagUsage) -> str:
        return f"{row.gpu_seconds:,.1f}"


@admin.register(Tally)
class TallyPages(ReadOnlyAdmin):
    noun = ("counter", "counters")
    about = "Counters since the installation; /metrics exports them."
    list_display = ("name", "model", "code", "count")
    search_fields = ("name", "model__exact", "code__exact")
    ordering = ("name", "model", "code")


@admin.register(SweepRun)
class SweepRunPages(ReadOnlyAdmin):
    noun = ("sweep", "sweeps")
    about = "The last run of each sweep. If no time advances, beat or the sweeps worker is down."
    list_display = ("name", "at", "looked", "repaired", "note")
    ordering = ("name",)
    sortable_by = ("name", "at")


@admin.register(WorkerSign)
class WorkerSignPages(ReadOnlyAdmin):
    noun = ("worker heartbeat", "worker heartbeats")
    about = "Heartbeats of GPU workers that hold leases. Cut off: attempts whose leases could not be renewed."
    list_display = ("worker", "at", "cut_off")
    ordering = ("worker",)
    sortable_by = ("worker", "at")


@admin.register(Process)
class ProcessPages(ReadOnlyAdmin):
    noun = ("process", "processes")
    about = "Web processes and workers with their last heartbeat."
    list_display = ("name", "kind", "layout", "started_at", "beat_at")
    ordering = ("name",)
    sortable_by = ("name", "beat_at")


@admin.register(FleetIndex)
class FleetIndexPages(ReadOnlyAdmin):
    noun = ("index layout", "index layouts")
    about = "The key layout of each fleet's index in Redis, which an upgrade may switch."
    list_display = ("fleet", "layout", "next_layout", "changed_at")
    ordering = ("fleet",)
    sortable_by = ()
    list_before_template = "admin_ui/index_layouts_top.html"

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        without_row = sorted(set(fleets()) - set(read_index_states()))
        context = {"without_row": without_row, "first_layout": FIRST_LAYOUT, **(extra_context or {})}
        page: HttpResponse = super().changelist_view(request, context)
        return page
