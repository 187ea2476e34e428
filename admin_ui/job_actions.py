"""What operators do to jobs: each a service, never a write of our own."""

from __future__ import annotations

from typing import Any

from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.urls import reverse

from jobs.models import Job
from jobs.services import ports
from jobs.services.operate import cancel_job, dismiss_dead_letter, retry_dead_letter
from jobs.states import JobState, is_final

from .marks import operation
from .operating import MOST_AT_ONCE, back_to, for_each


def cancel(job_id: str) -> str:
    return str(cancel_job(job_id, ports=ports.production_ports())).replace("requested", "asked to stop")


def retry(job_id: str) -> str:
    retry_dead_letter(job_id, ports=ports.production_ports())
    return "back in line"


def dismiss(job_id: str) -> str:
    dismiss_dead_letter(job_id, ports=ports.production_ports())
    return "dismissed"


class JobActions:
    """For lists: on the ticked rows. For a job's own page: buttons that ask first."""

    @operation("Cancel", permissions=["operate"])
    def cancel_jobs(self, request: HttpRequest, queryset: QuerySet[Job]) -> None:
        for_each(request, _ids(queryset), cancel)

    @operation("Retry (dead letters)", permissions=["operate"])
    def retry_jobs(self, request: HttpRequest, queryset: QuerySet[Job]) -> None:
        for_each(request, _ids(queryset), retry)

    @operation("Dismiss (dead letters)", permissions=["operate"])
    def dismiss_jobs(self, request: HttpRequest, queryset: QuerySet[Job]) -> None:
        for_each(request, _ids(queryset), dismiss)

    @operation(
        "Cancel job",
        permissions=["cancel"],
        icon="block",
        confirm=("Cancel this job?", "A running job is stopped at its GPU.", "Yes, cancel it"),
    )
    def cancel_one(self, request: HttpRequest, form: Any, object_id: str) -> HttpResponse:
        for_each(request, [object_id], cancel)
        return back_to(request, reverse("admin:jobs_job_change", args=[object_id]))

    @operation(
        "Retry",
        permissions=["retry"],
        icon="replay",
        confirm=("Retry this job?", "It goes back in line with a new budget of tries.", "Yes, retry it"),
    )
    def retry_one(self, request: HttpRequest, form: Any, object_id: str) -> HttpResponse:
        for_each(request, [object_id], retry)
        return back_to(request, reverse("admin:jobs_job_change", args=[object_id]))

    @operation(
        "Dismiss",
        permissions=["retry"],
        icon="delete_sweep",
        confirm=("Dismiss this dead letter?", "The job stays, but off the dead letters.", "Yes, dismiss it"),
    )
    def dismiss_one(self, request: HttpRequest, form: Any, object_id: str) -> HttpResponse:
        for_each(request, [object_id], dismiss)
        return back_to(request, reverse("admin:jobs_job_change", args=[object_id]))

    def has_operate_permission(self, request: HttpRequest, object_id: str | None = None) -> bool:
        return bool(request.user.has_perm("jobs.change_job"))

    def has_cancel_permission(self, request: HttpRequest, object_id: str | None = None) -> bool:
        """Also whether it makes sense: the button is only there while it does."""
        state = _state(object_id) if self.has_operate_permission(request) else None
        return state is not None and not is_final(state)

    def has_retry_permission(self, request: HttpRequest, object_id: str | None = None) -> bool:
        if not self.has_operate_permission(request):
            return False
        return Job.objects.filter(id=object_id, state=JobState.FAILED, dismissed_at=None).exists()


def _state(job_id: str | None) -> JobState | None:
    found = Job.objects.filter(id=job_id).values_list("state", flat=True).first()
    return JobState(found) if found else None


def _ids(queryset: QuerySet[Job]) -> list[str]:
    return list(queryset.order_by("pk").values_list("pk", flat=True)[: MOST_AT_ONCE + 1])
