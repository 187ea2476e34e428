"""Bulk actions: retry, dismiss or cancel all jobs that match a filter, after they have been counted.

The page sends one request per step, of a second or two. Closing it stops between two jobs, as each job is
changed in a transaction of its own. The fields of `JobFilter`, from a form or a link, select the jobs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from django import forms
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBadRequest, HttpResponseNotAllowed
from django.template.response import TemplateResponse
from django.urls import URLPattern
from unfold.widgets import UnfoldAdminSelectWidget, UnfoldAdminTextInputWidget, UnfoldBooleanWidget

from admin_ui.actions.job_actions import JobActions
from admin_ui.actions.operations import actor
from admin_ui.parts.base_pages import HistoryAdmin
from gpus.models import ModelConfig, Server
from jobs import ports
from jobs.domain.states import JobState, is_final
from jobs.models import Tenant
from jobs.operations.bulk import BulkAction, BulkOutcome, cancel_jobs, count, dismiss_jobs, retry_jobs
from jobs.reports.jobs import JobFilter
from jobs.reports.retried import MAX_FOLLOWED, jobs_of_entries, retried, retried_rows

_ANY = ("", "any")
_LIST_FILTERS = {
    "model": "model",
    "error_code": "error_code",
    "error_fingerprint": "fingerprint",
    "state__exact": "state",
    "client_errors": "client_errors",
}
"""Query parameters of the lists of jobs, and the fields of `BulkForm` that mean the same."""
STEP = 100
"""Jobs per request."""
MAX_ENTRIES = MAX_FOLLOWED // STEP
RETRIED_LISTED = 50
_SERVICES: dict[BulkAction, Callable[..., BulkOutcome]] = {
    BulkAction.RETRY: retry_jobs,
    BulkAction.DISMISS: dismiss_jobs,
    BulkAction.CANCEL: cancel_jobs,
}
BULK_LABELS = {
    BulkAction.RETRY: ("Retry", "retried", "dead letters"),
    BulkAction.DISMISS: ("Dismiss", "dismissed", "dead letters"),
    BulkAction.CANCEL: ("Cancel", "cancelled or being cancelled", "jobs"),
}
"""Verb, participle and noun."""


def _text(**attrs: str) -> UnfoldAdminTextInputWidget:
    return UnfoldAdminTextInputWidget(attrs=attrs)


class BulkForm(forms.Form):
    """An action and a job filter, bound to the page's query string. Empty fields match everything."""

    action = forms.ChoiceField(
        label="Action",
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
        help_text="For cancelling only.",
    )
    error_code = forms.CharField(required=False, label="Error", widget=_text())
    fingerprint = forms.CharField(
        required=False,
        label="Kind of failure",
        widget=_text(),
        help_text="Fingerprint of a group of dead letters.",
    )
    tag = forms.CharField(required=False, widget=_text())
    server = forms.ChoiceField(
        required=False, widget=UnfoldAdminSelectWidget, help_text="A server that an attempt ran on."
    )
    created_after = forms.DateTimeField(
        required=False, label="Created from (UTC)", widget=_text(type="datetime-local", step="1")
    )
    created_before = forms.DateTimeField(
        required=False, label="Created before (UTC)", widget=_text(type="datetime-local", step="1")
    )

    client_errors = forms.BooleanField(
        required=False,
        label="Client errors",
        widget=UnfoldBooleanWidget,
        help_text="Only failures that the client's input caused. They are left out otherwise, unless an "
        "error or a kind of failure is given.",
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for name, rows in (("model", ModelConfig.objects.all()), ("server", Server.objects.all())):
            names = list(rows.order_by("name").values_list("name", flat=True))
            given = str(self.data.get(name, "") or "")
            if given and given not in names:
                names.insert(0, given)  # deleted, but jobs still name it
            field: Any = self.fields[name]
            field.choices = [_ANY, *((each, each) for each in names)]

    def clean_tenant(self) -> str:
        name: str = self.cleaned_data["tenant"]
        if name and not Tenant.objects.filter(name=name).exists():
            raise forms.ValidationError("No tenant has this name.")
        return name

    @property
    def job_filter(self) -> JobFilter:
        """The filter of a valid form."""
        given = {name: value or None for name, value in self.cleaned_data.items() if name != "action"}
        if given["state"]:
            given["state"] = JobState(given["state"])
        return JobFilter(**given)

    @property
    def bulk_action(self) -> BulkAction:
        """The action of a valid form."""
        return BulkAction(self.cleaned_data["action"])


def query_of_list(filters: Mapping[str, str], action: BulkAction) -> str | None:
    """Return the query string of the bulk page for the jobs that a list shows.

    filters: the list's query parameters. None if one of them has no field in `BulkForm` (the search, a pool,
    the time of the end).
    """
    query = {"action": action.value}
    for name, value in filters.items():
        if name in ("o", "e", "after", "before") or not value:
            continue
        if name in _LIST_FILTERS:
            query[_LIST_FILTERS[name]] = value
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
    """The state of a bulk action between two steps.

    total: the count before the first step, and the limit: a job that is retried and fails again at once
    matches again, and would be retried for ever. done, refused: jobs so far. remaining: jobs that match now.
    entries: ids of the steps' audit entries, the last `MAX_ENTRIES`.
    """

    total: int
    done: int = 0
    refused: int = 0
    remaining: int | None = None
    entries: tuple[int, ...] = ()

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
        entries = (*self.entries, *([outcome.entry] if outcome.entry else []))[-MAX_ENTRIES:]
        return Progress(self.total, done, refused, outcome.remaining, entries)

    @property
    def entries_text(self) -> str:
        return ",".join(map(str, self.entries))


class BulkPage(JobActions, HistoryAdmin):
    """Mixin of the jobs' admin: the page of bulk actions."""

    def get_urls(self) -> list[URLPattern]:
        views = self.routes(
            ("bulk/", self.bulk, "jobs_job_bulk"),
            ("bulk/step/", self.bulk_step, "jobs_job_bulk_step"),
            ("retried/", self.retried, "jobs_job_retried"),
        )
        return [*views, *super().get_urls()]

    def bulk(self, request: HttpRequest) -> HttpResponse:
        """The form, and the count of matching jobs. The filter is the query string, so that links can hold
        one."""
        self._require_operate(request)
        form = BulkForm(request.GET or None, initial={"action": BulkAction.RETRY.value})
        context: dict[str, Any] = {
            **self.admin_site.each_context(request),
            "title": "Bulk actions",
            "opts": self.opts,
            "form": form,
        }
        if form.is_valid():
            total = count(form.job_filter, form.bulk_action, ports.production_ports())
            context |= {"total": total, **_labels(form.bulk_action)}
        return TemplateResponse(request, "admin_ui/bulk/page.html", context)

    def bulk_step(self, request: HttpRequest) -> HttpResponse:
        """Run the action on up to `STEP` jobs and return the progress as a fragment.

        POST fields: those of `BulkForm`, and total, done, refused and entries of `Progress`.
        """
        self._require_operate(request)
        if request.method != "POST":
            return HttpResponseNotAllowed(["POST"])
        form = BulkForm(request.POST)
        numbers = [request.POST.get(name, "") for name in ("total", "done", "refused")]
        entries = _numbers(request.POST.get("entries", ""))
        if not form.is_valid() or entries is None or not all(map(_is_number, numbers)):
            return HttpResponseBadRequest("The form is not valid.")
        total, done, refused = map(int, numbers)
        progress = Progress(total, done, refused, entries=entries)
        outcome = _SERVICES[form.bulk_action](
            form.job_filter,
            by=actor(request),
            ports=ports.production_ports(),
            at_most=max(min(STEP, progress.total - progress.tried), 0),
        )
        context = {"form": form, "progress": progress.after(outcome), **_labels(form.bulk_action)}
        return TemplateResponse(request, "admin_ui/bulk/progress.html", context)

    def retried(self, request: HttpRequest) -> HttpResponse:
        """Show how the retried jobs ended; a fragment for htmx, else a page.

        Query: entries, ids of audit entries of bulk retries, or jobs, ids of jobs; with commas.
        """
        if not self.has_view_permission(request):
            raise PermissionDenied
        entries = _numbers(request.GET.get("entries", ""))
        if entries is None:
            raise Http404
        named = [one for one in request.GET.get("jobs", "").split(",") if one][:MAX_FOLLOWED]
        job_ids = jobs_of_entries(entries) if entries else named
        found = retried(job_ids)
        context = {
            **self.admin_site.each_context(request),
            "title": "Retried jobs",
            "opts": self.opts,
            "found": found,
            "count": len(job_ids),
            "rows": retried_rows(job_ids)[:RETRIED_LISTED],
            "query": request.GET.urlencode(),
        }
        is_part = bool(request.headers.get("HX-Request"))
        return TemplateResponse(
            request, f"admin_ui/bulk/{'retried' if is_part else 'retried_page'}.html", context
        )

    def _require_operate(self, request: HttpRequest) -> None:
        if not self.has_operate_permission(request):
            raise PermissionDenied


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) < 16


def _numbers(text: str) -> tuple[int, ...] | None:
    """Numbers with commas, at most `MAX_ENTRIES`; None if the text is something else."""
    parts = [part for part in text.split(",") if part]
    if len(parts) > MAX_ENTRIES or not all(map(_is_number, parts)):
        return None
    return tuple(map(int, parts))


def _labels(action: BulkAction) -> dict[str, str]:
    verb, past, noun = BULK_LABELS[action]
    return {"verb": verb, "past": past, "noun": noun}
