"""Dead letters: FAILED jobs that nobody has dismissed, the last first."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from unfold.contrib.filters.admin import AutocompleteSelectFilter, RangeDateTimeFilter

from admin_ui.models import DeadLetter
from admin_ui.pages.jobs import JobRows
from admin_ui.parts.filters import ErrorCodeFilter, FingerprintFilter, ModelFilter
from admin_ui.parts.formatting import span
from admin_ui.parts.typed_decorators import column
from jobs.models import DEAD_LETTER, Job
from jobs.operations.jobs import BulkAction
from jobs.reports.failures import dead_letter_groups
from jobs.reports.jobs import JobFilter

MOST_GROUPS = 50


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
        FingerprintFilter,
        ("tenant", AutocompleteSelectFilter),
        ("finished_at", RangeDateTimeFilter),
    )
    ordering = ("-finished_at",)
    sortable_by = ("finished_at",)
    actions = ("retry_jobs", "dismiss_jobs")
    bulk_deeds = (BulkAction.RETRY, BulkAction.DISMISS)
    list_before_template = "admin_ui/dead_letters/top.html"

    @column("since submit")
    def lasted(self, job: Job) -> str:
        return span(job.created_at, job.finished_at)

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        rows: QuerySet[Any] = super().get_queryset(request)
        return rows.filter(DEAD_LETTER)

    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view(self.groups)
        return [path("groups/", view, name="admin_ui_deadletter_groups"), *super().get_urls()]

    def groups(self, request: HttpRequest) -> HttpResponse:
        """By kind of failure, for the top of the list; of one model if `?model=` says so."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        chosen = JobFilter(model=request.GET.get("model") or None)
        context = {
            "groups": dead_letter_groups(chosen, at_most=MOST_GROUPS),
            "model": chosen.model,
            "may_operate": self.has_operate_permission(request),
        }
        return TemplateResponse(request, "admin_ui/dead_letters/groups.html", context)

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: Any = None
    ) -> HttpResponse:
        """A job has one page, whichever list it was found in."""
        return redirect(reverse("admin:jobs_job_change", args=[object_id]))
