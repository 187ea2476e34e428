"""Work on many jobs: counted before anything is done, then done in steps, each a request of a second or two.

The page requests the next step when one is done. Closing the page stops the work between two jobs: a step
moves each job in its own transaction. The fields of `JobFilter`, from a form or a link, select the jobs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from django import forms
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseBadRequest, HttpResponseNotAllowed
from django.template.response import TemplateResponse
from django.urls import URLPattern, path
from unfold.widgets import UnfoldAdminSelectWidget, UnfoldAdminTextInputWidget

from admin_ui.actions.job_actions import JobActions
from admin_ui.actions.operations import actor
from admin_ui.parts.read_only import HistoryAdmin
from gpus.models import ModelConfig, Server
from jobs import ports
from jobs.domain.states import JobState, is_final
from jobs.models import Tenant
from jobs.operations.jobs import BulkAction, BulkOutcome, cancel_jobs, count, dismiss_jobs, retry_jobs
from jobs.reports.jobs import JobFilter

_ANY = ("", "any")
_SAME_IN_LISTS = {
    "model": "model",
    "error_code": "error_code",
    "error_fingerprint": "fingerprint",
    "state__exact": "state",
}
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


def _text(**attrs: str) -> UnfoldAdminTextInputWidget:
    return UnfoldAdminTextInputWidget(attrs=attrs)


class BulkForm(forms.Form):
    """Bound to the page's query string. Empty fields do not filter."""

    deed = forms.ChoiceField(
        label="Do what",
        choices=[
            (BulkAction.RETRY.value, "Retry dead letters"),
            (BulkAction.DISMISS.value, "Dismiss dead letters"),
            (BulkAction.CANCEL.value, "Cancel jobs"),
        ],
        widget=UnfoldAdminSelectWidget,
    )
    model = forms.ChoiceField(required=False, widget=UnfoldAdminSelectWidget)
    tenant = forms.CharField(required=False, widget=_text())
    state = forms.ChoiceField(
        required=False,
        choices=[_ANY, *((state.value, state.value) for state in JobState if not is_final(state))],
        widget=UnfoldAdminSelectWidget,
        help_text="Only where jobs are cancelled.",
    )
    error_code = forms.CharField(required=False, label="Error", widget=_text())
    fingerprint = forms.CharField(
        required=False, label="Kind of failure", widget=_text(), help_text="The fingerprint of a group."
    )
    tag = forms.CharField(required=False, widget=_text())
    server = forms.ChoiceField(
        required=False, widget=UnfoldAdminSelectWidget, help_text="One that an attempt ran on."
    )
    created_after = forms.DateTimeField(
        required=False, label="Created from (UTC)", widget=_text(type="datetime-local", step="1")
    )
    created_before = forms.DateTimeField(
        required=False, label="Created before (UTC)", widget=_text(type="datetime-local", step="1")
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for name, rows in (("model", ModelConfig.objects.all()), ("server", Server.objects.all())):
            names = list(rows.order_by("name").values_list("name", flat=True))
            given = str(self.data.get(name, "") or "")
            if given and given not in names:
                names.insert(0, given)  # of a job that outlived the registry
            field: Any = self.fields[name]
            field.choices = [_ANY, *((each, each) for each in names)]

    def clean_tenant(self) -> str:
        name: str = self.cleaned_data["tenant"]
        if name and not Tenant.objects.filter(name=name).exists():
            raise forms.ValidationError("There is no such tenant.")
        return name

    @property
    def chosen(self) -> JobFilter:
        """Of a valid form."""
        given = {name: value or None for name, value in self.cleaned_data.items() if name != "deed"}
        if given["state"]:
            given["state"] = JobState(given["state"])
        return JobFilter(**given)

    @property
    def deed_chosen(self) -> BulkAction:
        return BulkAction(self.cleaned_data["deed"])


def query_of_list(filters: Mapping[str, str], deed: BulkAction) -> str | None:
    """The page's query for what a list of jobs shows; None where the list is narrowed in a way that the page
    does not know (its search, a pool, when jobs ended)."""
    query = {"deed": deed.value}
    for name, value in filters.items():
        if name in ("o", "e", "after", "before") or not value:
            continue
        if name in _SAME_IN_LISTS:
            query[_SAME_IN_LISTS[name]] = value
        elif name == "tenant__id__exact":
            if not value.isdecimal():
                return None
            query["tenant"] = Tenant.objects.filter(pk=value).values_list("name", flat=True).first() or "?"
        elif name in ("created_at_from_0", "created_at_from_1"):
            query["created_after"] = _moment(filters, "created_at_from")
        elif name in ("created_at_to_0", "created_at_to_1"):
            query["created_before"] = _moment(filters, "created_at_to")
        else:
            return None
    return urlencode(query)


def _moment(filters: Mapping[str, str], name: str) -> str:
    return f"{filters.get(f'{name}_0', '')}T{filters.get(f'{name}_1', '')}"


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
