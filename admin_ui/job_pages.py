"""Jobs: found by id, tag, model or tenant; moved only by services."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.db.models import Q, QuerySet
from django.http import HttpRequest
from django.utils.safestring import SafeString
from unfold.admin import TabularInline
from unfold.contrib.filters.admin import AutocompleteSelectFilter, ChoicesDropdownFilter, RangeDateTimeFilter

from jobs.ids import ID_LENGTH
from jobs.models import Job, JobTag

from .filters import ErrorCodeFilter, ModelFilter, PoolFilter
from .job_actions import JobActions
from .job_inlines import AttemptsOfJob, CallbacksOfJob, EventsOfJob
from .marks import column
from .read_only import ReadOnlyAdmin, is_list
from .shapes import JOB_LABELS, badge, json_block, span

_HEAVY = ("payload", "result", "metadata", "error_message")


class JobRows(JobActions, ReadOnlyAdmin):
    list_select_related = ("tenant",)
    search_help_text = "A job's id, or exactly: a tag, a model, a tenant."
    search_fields = ("id",)
    sortable_by = ("created",)
    actions_detail = ("cancel_one", "retry_one", "dismiss_one")
    inlines: tuple[type[TabularInline], ...] = (AttemptsOfJob, EventsOfJob, CallbacksOfJob)
    readonly_fields = ("state_label", "payload_json", "result_json", "metadata_json", "tag_list", "created")
    fieldsets = (
        (
            None,
            {
                "fields": (
                    ("id", "state_label"),
                    ("tenant", "model"),
                    ("priority", "pool"),
                    ("tag_list", "callback_url"),
                    ("error_code", "error_message"),
                )
            },
        ),
        ("Result", {"fields": ("result_json",), "classes": ["tab"]}),
        ("Payload", {"fields": ("payload_json", "metadata_json"), "classes": ["tab"]}),
        (
            "Times",
            {
                "fields": (
                    ("created_at", "started_at"),
                    ("finished_at", "due_at"),
                    ("deadline_at", "start_deadline_at"),
                    ("cancel_requested_at", "dismissed_at"),
                ),
                "classes": ["tab"],
            },
        ),
        (
            "Budget",
            {
                "fields": (
                    ("round", "attempts_made"),
                    ("tries", "max_retries"),
                    ("free_connects", "deaths"),
                    ("live_attempt", "avoid_server"),
                    "fleet",
                ),
                "classes": ["tab"],
            },
        ),
    )

    @column("state")
    def state_label(self, job: Job) -> SafeString:
        return badge(job.state, JOB_LABELS)

    @column("created", ordering="id")  # ids sort by time, and they have the index
    def created(self, job: Job) -> Any:
        return job.created_at

    @column("waited")
    def waited(self, job: Job) -> str:
        return span(job.created_at, job.started_at)

    @column("took")
    def took(self, job: Job) -> str:
        return span(job.started_at, job.finished_at)

    @column("payload")
    def payload_json(self, job: Job) -> SafeString | str:
        return json_block(job.payload)

    @column("result")
    def result_json(self, job: Job) -> SafeString | str:
        return json_block(job.result)

    @column("metadata")
    def metadata_json(self, job: Job) -> SafeString | str:
        return json_block(job.metadata)

    @column("tags")
    def tag_list(self, job: Job) -> str:
        return ", ".join(map(str, job.tags)) or "–"

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        rows: QuerySet[Any] = super().get_queryset(request)
        return rows.defer(*_HEAVY) if is_list(request) else rows

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        """Only what an index answers."""
        term = search_term.strip()
        if not term:
            return queryset, False
        if len(term) == ID_LENGTH:
            found = queryset.filter(id=term.upper())
            if found.exists():
                return found, False
        tagged = JobTag.objects.filter(tag=term).values("job_id")
        return queryset.filter(Q(model=term) | Q(tenant__name=term) | Q(id__in=tagged)), False


@admin.register(Job)
class JobPages(JobRows):
    list_display = (
        "id",
        "state_label",
        "model",
        "tenant",
        "priority",
        "attempts_made",
        "error_code",
        "created",
        "waited",
        "took",
    )
    list_filter = (
        ("state", ChoicesDropdownFilter),
        ModelFilter,
        PoolFilter,
        ErrorCodeFilter,
        ("tenant", AutocompleteSelectFilter),
        ("created_at", RangeDateTimeFilter),
    )
    ordering = ("-id",)
    actions = ("cancel_jobs",)
