"""Admin actions on jobs. Each calls a service of `jobs.operations`; no action writes rows itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import reverse
from unfold.forms import BaseDialogForm

from admin_ui.actions.operations import MAX_AT_ONCE, act_on_one, actor, back_to, confirm_first, for_each
from admin_ui.parts.submit_form import PriorityField
from admin_ui.parts.typed_decorators import operation
from jobs import ports
from jobs.domain.access import VIEW_PAYLOAD
from jobs.domain.states import JobState, is_final
from jobs.models import Job
from jobs.operations.erase import ERASED, erase_job_data
from jobs.operations.jobs import cancel_job, dismiss_dead_letter, retry_dead_letter
from jobs.operations.queue_position import change_priority, run_next
from jobs.operations.rerun import find_with_payload, rerun_job
from jobs.transitions import WAITING

MAX_IN_ADDRESS = 100
"""Job ids in an address: it may have 8 KiB."""
_STATES = "_job_states"
"""Attribute of a request: the jobs that `JobActions` has read for it."""


class PriorityForm(BaseDialogForm):  # type: ignore[misc]
    priority = PriorityField()


class JobActions:
    """Mixin of job pages: actions on the selected rows of a list, and buttons with a dialog on a job's
    page."""

    @operation("Cancel", permissions=["operate"])
    @confirm_first("Cancel these jobs?", "Running jobs are stopped on their GPUs.", "Yes, cancel them")
    def cancel_jobs(self, request: HttpRequest, queryset: QuerySet[Job]) -> None:
        for_each(request, _ids(queryset), _cancel(request))

    @operation("Retry (dead letters)", permissions=["operate"])
    def retry_jobs(self, request: HttpRequest, queryset: QuerySet[Job]) -> HttpResponse:
        """Retry the jobs; the page of the outcome shows which of them fail again."""
        job_ids = _ids(queryset)
        for_each(request, job_ids, _retry(request))
        followed = ",".join(job_ids[:MAX_IN_ADDRESS])
        return redirect(f"{reverse('admin:jobs_job_retried')}?jobs={followed}")

    @operation("Dismiss (dead letters)", permissions=["operate"])
    @confirm_first(
        "Dismiss these dead letters?",
        "They leave the list of dead letters; the jobs themselves are kept.",
        "Yes, dismiss them",
    )
    def dismiss_jobs(self, request: HttpRequest, queryset: QuerySet[Job]) -> None:
        for_each(request, _ids(queryset), _dismiss(request))

    @operation(
        "Run next",
        permissions=["reorder"],
        icon="vertical_align_top",
        confirm=(
            "Run this job next?",
            "It gets priority 1 and goes before all other jobs of its tenant.",
            "Yes, run it next",
        ),
    )
    def run_next_one(self, request: HttpRequest, form: Any, object_id: str) -> HttpResponse:
        def act(job_id: str) -> str:
            run_next(job_id, by=actor(request), ports=ports.production_ports())
            return "moved to the front of the queue"

        return _done(request, object_id, act)

    @operation(
        "Priority",
        permissions=["reorder"],
        icon="low_priority",
        confirm=(
            "Change the priority",
            "The job keeps its place among the jobs of that priority.",
            "Change",
        ),
        form_class=PriorityForm,
    )
    def priority_one(self, request: HttpRequest, form: Any, object_id: str) -> HttpResponse:
        def act(job_id: str) -> str:
            priority = form.cleaned_data["priority"]
            change_priority(job_id, priority, by=actor(request), ports=ports.production_ports())
            return f"set to priority {priority}"

        return _done(request, object_id, act)

    @operation(
        "Cancel job",
        permissions=["cancel"],
        icon="block",
        confirm=("Cancel this job?", "A running job is stopped on its GPU.", "Yes, cancel it"),
    )
    def cancel_one(self, request: HttpRequest, form: Any, object_id: str) -> HttpResponse:
        return _done(request, object_id, _cancel(request))

    @operation(
        "Retry",
        permissions=["retry"],
        icon="replay",
        confirm=("Retry this job?", "It goes back to the queue with all its retries.", "Yes, retry it"),
    )
    def retry_one(self, request: HttpRequest, form: Any, object_id: str) -> HttpResponse:
        return _done(request, object_id, _retry(request))

    @operation(
        "Dismiss",
        permissions=["retry"],
        icon="delete_sweep",
        confirm=(
            "Dismiss this dead letter?",
            "It leaves the list of dead letters; the job itself is kept.",
            "Yes, dismiss it",
        ),
    )
    def dismiss_one(self, request: HttpRequest, form: Any, object_id: str) -> HttpResponse:
        return _done(request, object_id, _dismiss(request))

    @operation(
        "Run again",
        permissions=["rerun"],
        icon="refresh",
        confirm=(
            "Run this job again?",
            "A new job with the same payload and options is submitted. This one stays as it is.",
            "Yes, run it again",
        ),
    )
    def rerun_one(self, request: HttpRequest, form: Any, object_id: str) -> HttpResponse:
        made: list[str] = []

        def act(job_id: str) -> str:
            job = find_with_payload(job_id)
            if job is None:
                raise Job.DoesNotExist
            new = rerun_job(job, {}, ports=ports.production_ports(), by=actor(request)).job
            made.append(new.id)
            return f"new job: it runs {job_id} again"

        for_each(request, [object_id], act)
        return back_to(request, reverse("admin:jobs_job_change", args=[made[0] if made else object_id]))

    @operation(
        "Erase data",
        permissions=["erase"],
        icon="delete_forever",
        confirm=(
            "Erase the data of this job?",
            "Payload, result, metadata, error messages and log lines are erased for ever, and files that no "
            "other job uses. Times, states and hashes stay. The job can't be retried.",
            "Yes, erase it",
        ),
    )
    def erase_one(self, request: HttpRequest, form: Any, object_id: str) -> HttpResponse:
        def act(job_id: str) -> str:
            erase_job_data(job_id, by=actor(request), ports=ports.production_ports())
            return "erased"

        return _done(request, object_id, act)

    def has_erase_permission(self, request: HttpRequest, object_id: str | None = None) -> bool:
        """Return True if the user may change jobs, and the job has ended and still has its data. The data of
        a run's job is erased with the run."""
        job = self._job_to_operate(request, object_id)
        if job is None or not is_final(JobState(job.state)) or job.followed_by is not None:
            return False
        return not Job.objects.filter(id=job.id, payload__has_key=ERASED).exists()

    def has_rerun_permission(self, request: HttpRequest, object_id: str | None = None) -> bool:
        """Return True if the user may change jobs and see payloads."""
        return self.has_operate_permission(request) and bool(request.user.has_perm(VIEW_PAYLOAD))

    def has_operate_permission(self, request: HttpRequest, object_id: str | None = None) -> bool:
        return bool(request.user.has_perm("jobs.change_job"))

    def has_cancel_permission(self, request: HttpRequest, object_id: str | None = None) -> bool:
        """Return True if the user may cancel and the job has not ended; otherwise there is no button."""
        job = self._job_to_operate(request, object_id)
        return job is not None and not is_final(JobState(job.state))

    def has_reorder_permission(self, request: HttpRequest, object_id: str | None = None) -> bool:
        job = self._job_to_operate(request, object_id)
        return job is not None and job.state in WAITING and job.cancel_requested_at is None

    def has_retry_permission(self, request: HttpRequest, object_id: str | None = None) -> bool:
        job = self._job_to_operate(request, object_id)
        return job is not None and job.state == JobState.FAILED and job.dismissed_at is None

    def _job_to_operate(self, request: HttpRequest, object_id: str | None) -> Job | None:
        """The job, with the fields that buttons depend on; None without permission. Read once per request."""
        if not self.has_operate_permission(request):
            return None
        known = request.__dict__.setdefault(_STATES, {})
        if object_id not in known:
            rows = Job.objects.only("state", "cancel_requested_at", "dismissed_at", "followed_by")
            known[object_id] = rows.filter(id=object_id).first()
        found: Job | None = known[object_id]
        return found


def _cancel(request: HttpRequest) -> Callable[[str], str]:
    def act(job_id: str) -> str:
        outcome = cancel_job(job_id, by=actor(request), ports=ports.production_ports())
        return str(outcome).replace("requested", "being cancelled")

    return act


def _retry(request: HttpRequest) -> Callable[[str], str]:
    def act(job_id: str) -> str:
        retry_dead_letter(job_id, by=actor(request), ports=ports.production_ports())
        return "back in the queue"

    return act


def _dismiss(request: HttpRequest) -> Callable[[str], str]:
    def act(job_id: str) -> str:
        dismiss_dead_letter(job_id, by=actor(request), ports=ports.production_ports())
        return "dismissed"

    return act


def _done(request: HttpRequest, job_id: str, act: Callable[[str], str]) -> HttpResponse:
    return act_on_one(request, job_id, act, page="admin:jobs_job_change")


def _ids(queryset: QuerySet[Job]) -> list[str]:
    return list(queryset.order_by("pk").values_list("pk", flat=True)[: MAX_AT_ONCE + 1])
