"""Dead letters: FAILED jobs that nobody has dismissed, the last first."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import reverse
from unfold.contrib.filters.admin import AutocompleteSelectFilter, RangeDateTimeFilter

from jobs.models import Job
from jobs.states import JobState

from .filters import ErrorCodeFilter, ModelFilter
from .job_pages import JobRows
from .marks import column
from .models import DeadLetter
from .shapes import span


@admin.register(DeadLetter)
class DeadLetterPages(JobRows):
    list_display = (
        "id",
        "error_code",
        "model",
        "tenant",
        "attempts_made",
        "round",
        "finished_at",
        "lasted",
    )
    list_filter = (
        ModelFilter,
        ErrorCodeFilter,
        ("tenant", AutocompleteSelectFilter),
        ("finished_at", RangeDateTimeFilter),
    )
    ordering = ("-finished_at",)
    sortable_by = ("finished_at",)
    actions = ("retry_jobs", "dismiss_jobs")

    @column("since submit")
    def lasted(self, job: Job) -> str:
        return span(job.created_at, job.finished_at)

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        rows: QuerySet[Any] = super().get_queryset(request)
        return rows.filter(state=JobState.FAILED, dismissed_at=None)

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: Any = None
    ) -> HttpResponse:
        """A job has one page, whichever list it was found in."""
        return redirect(reverse("admin:jobs_job_change", args=[object_id]))
