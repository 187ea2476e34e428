"""Lists of jobs and of dead letters: FAILED jobs that no operator has dismissed. Only services change
jobs."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.db.models import Q, QuerySet
from django.db.models.functions import Left
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, reverse
from django.utils.safestring import SafeString
from unfold.contrib.filters.admin import AutocompleteSelectFilter, ChoicesDropdownFilter, RangeDateTimeFilter

from admin_ui.actions.job_actions import JobActions
from admin_ui.models import DeadLetter
from admin_ui.pages.bulk import BULK_LABELS, BulkPage, query_of_list
from admin_ui.pages.job import JobDetail
from admin_ui.pages.rerun import RerunPage
from admin_ui.parts.base_pages import HistoryAdmin, IndexedSearch
from admin_ui.parts.filters import (
    ClientErrorsFilter,
    CreatedFilter,
    ErrorCodeFilter,
    FingerprintFilter,
    JobErrorFilter,
    ModelFilter,
    PoolFilter,
)
from admin_ui.parts.formatting import follower_link, job_badge, model_link, span, tenant_link, time_and_age
from admin_ui.parts.typed_decorators import column
from foundation.ids import ID_LENGTH
from jobs.models import DEAD_LETTER, Job, JobTag, Tenant
from jobs.operations.bulk import BulkAction
from jobs.reports.failures import dead_letter_groups
from jobs.reports.jobs import JobFilter
from jobs.reports.progress import read_progress

MAX_GROUPS = 50
MESSAGE_SHOWN = 300
"""Characters of an error message that a list reads; its first line is shown."""


class JobRows(JobActions, IndexedSearch, HistoryAdmin):
    """Base of both lists: columns, search, and links to bulk actions."""

    list_select_related = ("tenant",)
    search_help_text = "Exact match: a job's id, a tag, a model or a tenant."
    search_fields = ("id",)
    sortable_by = ("created",)
    list_before_template = "admin_ui/job/list_top.html"
    bulk_actions: tuple[BulkAction, ...] = ()
    heavy = ("payload", "result", "metadata", "error_message")

    @column("state")
    def state_label(self, job: Job) -> SafeString:
        return job_badge(job)

    @column("model")
    def model_link(self, job: Job) -> SafeString | str:
        return model_link(job.model)

    @column("tenant")
    def tenant_link(self, job: Job) -> SafeString | str:
        return tenant_link(job.tenant)

    @column("created", ordering="id")  # ids sort by time, and they have the index
    def created(self, job: Job) -> SafeString | str:
        return time_and_age(job.created_at)

    @column("attempts")
    def attempts(self, job: Job) -> int:
        return job.attempts_made

    @column("waited")
    def waited(self, job: Job) -> str:
        return span(job.created_at, job.started_at)

    @column("run time")
    def took(self, job: Job) -> str:
        return span(job.started_at, job.finished_at)

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        """Django's list, with links to bulk actions on all jobs that it shows."""
        context = dict(extra_context or {})
        if self.has_operate_permission(request):
            filters = request.GET.dict()
            context["bulk_links"] = [
                (BULK_LABELS[action][0], query)
                for action in self.bulk_actions
                if (query := query_of_list(filters, action)) is not None
            ]
        answer: HttpResponse = super().changelist_view(request, context)
        shown = getattr(answer, "context_data", None) or {}
        if "cl" in shown:
            read_progress(shown["cl"].result_list)
        return answer

    def find(self, rows: QuerySet[Any], term: str) -> QuerySet[Any]:
        if len(term) == ID_LENGTH:
            found = rows.filter(id=term.upper())
            if found.exists():
                return found
        # only conditions that match: all three OR'ed would use no index and read every job
        condition = Q()
        if Job.objects.filter(model=term).exists():
            condition |= Q(model=term)
        if tenant := Tenant.objects.filter(name=term).first():
            condition |= Q(tenant=tenant)
        if JobTag.objects.filter(tag=term).exists():
            condition |= Q(id__in=JobTag.objects.filter(tag=term).values("job_id"))
        return rows.filter(condition) if condition else rows.none()


@admin.register(Job)
class JobPages(JobRows, JobDetail, RerunPage, BulkPage):
    actions_detail = (
        "run_next_one", "priority_one", "cancel_one", "retry_one", "dismiss_one", "rerun_one", "erase_one",
    )  # fmt: skip
    bulk_actions = (BulkAction.CANCEL,)
    list_display = (
        "id",
        "state_label",
        "model_link",
        "created",
        "tenant_link",
        "priority",
        "attempts",
        "error_code",
        "waited",
        "took",
    )
    list_filter = (
        ("state", ChoicesDropdownFilter),
        ModelFilter,
        PoolFilter,
        JobErrorFilter,
        ("tenant", AutocompleteSelectFilter),
        ("created_at", CreatedFilter),
    )
    ordering = ("-id",)
    actions = ("cancel_jobs",)


@admin.register(DeadLetter)
class DeadLetterPages(JobRows):
    list_display = (
        "id",
        "error_code",
        "message",
        "failed",
        "model_link",
        "tenant_link",
        "attempts",
        "run_page",
        "round",
    )
    list_filter = (
        ClientErrorsFilter,
        ModelFilter,
        ErrorCodeFilter,
        FingerprintFilter,
        ("tenant", AutocompleteSelectFilter),
        ("finished_at", RangeDateTimeFilter),
    )
    ordering = ("-finished_at",)
    sortable_by = ("failed",)
    actions = ("retry_jobs", "dismiss_jobs")
    bulk_actions = (BulkAction.RETRY, BulkAction.DISMISS)
    list_before_template = "admin_ui/dead_letters/top.html"

    @column("run")
    def run_page(self, job: Job) -> SafeString | str:
        return follower_link(job.followed_by)

    @column("message")
    def message(self, job: Any) -> str:
        return str(job.message_start).partition("\n")[0]

    @column("failed", ordering="finished_at")
    def failed(self, job: Job) -> SafeString | str:
        return time_and_age(job.finished_at)

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        rows: QuerySet[Any] = super().get_queryset(request)
        message = Left("error_message", MESSAGE_SHOWN)
        letters: QuerySet[Any] = rows.filter(DEAD_LETTER).annotate(message_start=message)
        return letters

    def get_urls(self) -> list[URLPattern]:
        return [*self.routes(("groups/", self.groups, "admin_ui_deadletter_groups")), *super().get_urls()]

    def groups(self, request: HttpRequest) -> HttpResponse:
        """The groups by kind of failure above the list, as a fragment. `?model=` limits them to a model."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        is_client = request.GET.get("client_errors") == "1"
        job_filter = JobFilter(model=request.GET.get("model") or None, client_errors=is_client or None)
        context = {
            "groups": dead_letter_groups(job_filter, at_most=MAX_GROUPS),
            "model": job_filter.model,
            "is_client": is_client,
            "may_operate": self.has_operate_permission(request),
        }
        return TemplateResponse(request, "admin_ui/dead_letters/groups.html", context)

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: Any = None
    ) -> HttpResponse:
        """Redirect to the job's page: a job has only one."""
        return redirect(reverse("admin:jobs_job_change", args=[object_id]))
