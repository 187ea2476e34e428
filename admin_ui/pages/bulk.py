"""Work on many jobs: counted before anything is done, then done in steps, each a request of a second or two.

The page asks for the next step when one is done. Whoever closes it stops it, and nothing is half done then:
a step moves each job in its own transaction.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseBadRequest, HttpResponseNotAllowed
from django.template.response import TemplateResponse
from django.urls import URLPattern, path

from admin_ui.actions.bulk_form import BulkForm
from admin_ui.actions.job_actions import JobActions
from admin_ui.actions.operations import actor
from admin_ui.parts.read_only import HistoryAdmin
from jobs import ports
from jobs.operations.bulk import BulkAction, BulkOutcome, cancel_jobs, count, dismiss_jobs, retry_jobs

STEP = 100
"""Jobs per request."""

_ACTS: dict[BulkAction, Callable[..., BulkOutcome]] = {
    BulkAction.RETRY: retry_jobs,
    BulkAction.DISMISS: dismiss_jobs,
    BulkAction.CANCEL: cancel_jobs,
}
BULK_WORDS = {
    BulkAction.RETRY: ("Retry", "retried", "dead letters"),
    BulkAction.DISMISS: ("Dismiss", "dismissed", "dead letters"),
    BulkAction.CANCEL: ("Cancel", "cancelled or asked to stop", "jobs"),
}


@dataclass(frozen=True, slots=True)
class Progress:
    """total: what was counted before the first step, and the most that is done. A job that is retried and
    fails again at once matches again: without that bound it would be retried for ever."""

    total: int
    done: int = 0
    refused: int = 0
    remaining: int | None = None

    @property
    def tried(self) -> int:
        return self.done + self.refused

    @property
    def is_over(self) -> bool:
        return self.remaining == 0 or self.tried >= self.total

    @property
    def percent(self) -> int:
        return 100 if self.is_over or not self.total else min(100, self.tried * 100 // self.total)

    def after(self, outcome: BulkOutcome) -> Progress:
        done, refused = self.done + outcome.done, self.refused + outcome.refused
        return Progress(self.total, done, refused, outcome.remaining)


class BulkPage(JobActions, HistoryAdmin):
    """A page of the jobs' admin."""

    def get_urls(self) -> list[URLPattern]:
        ours = (("bulk/", self.bulk, "jobs_job_bulk"), ("bulk/step/", self.bulk_step, "jobs_job_bulk_step"))
        views = [path(route, self.admin_site.admin_view(view), name=name) for route, view, name in ours]
        return [*views, *super().get_urls()]

    def bulk(self, request: HttpRequest) -> HttpResponse:
        """By GET only, and it only counts: the filter is the query, so that a link can hold one."""
        self._require_operate(request)
        form = BulkForm(request.GET or None, initial={"deed": BulkAction.RETRY.value})
        context: dict[str, Any] = {
            **self.admin_site.each_context(request),
            "title": "Work on many jobs",
            "opts": self.opts,
            "form": form,
        }
        if form.is_valid():
            total = count(form.chosen, form.deed_chosen)
            context |= {"total": total, "asked": request.GET.urlencode(), **_labels(form.deed_chosen)}
        return TemplateResponse(request, "admin_ui/bulk/page.html", context)

    def bulk_step(self, request: HttpRequest) -> HttpResponse:
        """By POST: the filter, and how far it is. Does at most a hundred, and answers with the progress."""
        self._require_operate(request)
        if request.method != "POST":
            return HttpResponseNotAllowed(["POST"])
        form = BulkForm(request.POST)
        numbers = [request.POST.get(name, "") for name in ("total", "done", "refused")]
        if not form.is_valid() or not all(text.isascii() and text.isdecimal() for text in numbers):
            return HttpResponseBadRequest("Not a step of this page.")
        total, done, refused = map(int, numbers)
        progress = Progress(total, done, refused)
        outcome = _ACTS[form.deed_chosen](
            form.chosen,
            by=actor(request),
            ports=ports.production_ports(),
            at_most=max(min(STEP, progress.total - progress.tried), 0),
        )
        context = {"form": form, "progress": progress.after(outcome), **_labels(form.deed_chosen)}
        return TemplateResponse(request, "admin_ui/bulk/progress.html", context)

    def _require_operate(self, request: HttpRequest) -> None:
        if not self.has_operate_permission(request):
            raise PermissionDenied


def _labels(deed: BulkAction) -> dict[str, str]:
    verb, past, what = BULK_WORDS[deed]
    return {"verb": verb, "past": past, "what": what}
