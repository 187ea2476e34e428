"""The page *Run again*: a new job with the payload and options of an earlier one, which can be changed."""

from __future__ import annotations

import json
import uuid
from typing import Any

from django import forms
from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from unfold.widgets import (
    UnfoldAdminIntegerFieldWidget,
    UnfoldAdminTextareaWidget,
    UnfoldAdminTextInputWidget,
)

from admin_ui.actions.job_actions import JobActions
from admin_ui.actions.operations import actor
from admin_ui.parts.base_pages import HistoryAdmin
from foundation.http_api.json_body import read_json
from foundation.http_api.problems import FieldError, Problem
from foundation.http_client import MAX_URL_LENGTH
from gpus.models import ModelConfig
from jobs import ports
from jobs.domain.errors import Refused
from jobs.models import Job
from jobs.operations.jobs import FIRST_PRIORITY, LAST_PRIORITY
from jobs.operations.rerun import find_with_payload, rerun_job

MAX_EDITED_BYTES = 256 * 1024
"""A longer payload is not put into the page; the API and the command line take it."""


class RerunForm(forms.Form):
    """payload: JSON. key: makes a second click harmless."""

    payload = forms.CharField(
        required=False,
        strip=False,
        widget=UnfoldAdminTextareaWidget(attrs={"rows": 16, "spellcheck": "false", "class": "mono"}),
        help_text="A JSON object, checked against the model's schema.",
    )
    priority = forms.IntegerField(
        min_value=FIRST_PRIORITY, max_value=LAST_PRIORITY, widget=UnfoldAdminIntegerFieldWidget
    )
    tags = forms.CharField(required=False, widget=UnfoldAdminTextInputWidget, help_text="With commas.")
    callback_url = forms.CharField(
        required=False,
        label="Callback URL",
        max_length=MAX_URL_LENGTH,
        widget=UnfoldAdminTextInputWidget(attrs={"inputmode": "url"}),
    )
    key = forms.CharField(widget=forms.HiddenInput, max_length=64)

    def __init__(self, *args: Any, is_short: bool = True, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if not is_short:
            del self.fields["payload"]

    def clean_payload(self) -> Any:
        try:
            return read_json(self.cleaned_data["payload"].encode())
        except Problem as problem:
            raise forms.ValidationError([_text(one) for one in problem.errors] or problem.detail) from None

    def clean_tags(self) -> list[str]:
        return [tag.strip() for tag in self.cleaned_data["tags"].split(",") if tag.strip()]

    @property
    def changes(self) -> dict[str, Any]:
        """The changes of a valid form, as the API takes them."""
        given = {name: value for name, value in self.cleaned_data.items() if name != "key"}
        return {**given, "tags": given["tags"] or None, "callback_url": given["callback_url"] or None}

    def add_refusal(self, refusal: Problem | Refused) -> None:
        """Show each error at its field."""
        if isinstance(refusal, Refused):
            errors = [FieldError(refusal.pointer or "", refusal.code, str(refusal))]
        else:
            errors = list(refusal.errors) or [FieldError("", refusal.code, refusal.detail)]
        for error in errors:
            name = error.pointer.split("/")[1] if error.pointer.startswith("/") else ""
            self.add_error(name if name in self.fields else None, _text(error))


def _text(error: FieldError) -> str:
    """The error with its place in the payload."""
    inside = error.pointer.removeprefix("/payload")
    return f"{inside}: {error.detail}" if inside.startswith("/") else error.detail


def _initial(job: Job, payload: str) -> dict[str, Any]:
    return {
        "payload": payload,
        "priority": job.priority,
        "tags": ", ".join(job.tags),
        "callback_url": job.callback_url,
        "key": f"admin-{uuid.uuid4().hex}",
    }


class RerunPage(JobActions, HistoryAdmin):
    """Mixin of the jobs' admin."""

    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view(self.rerun)
        return [path("<str:job_id>/rerun/", view, name="jobs_job_rerun"), *super().get_urls()]

    def rerun(self, request: HttpRequest, job_id: str) -> HttpResponse:
        """GET: the form with the earlier values. POST: submit the new job and go to its page."""
        if not self.has_rerun_permission(request):
            raise PermissionDenied
        job = find_with_payload(job_id)
        if job is None:
            raise Http404
        payload = json.dumps(job.payload, indent=2, ensure_ascii=False)
        is_short = len(payload.encode()) <= MAX_EDITED_BYTES
        form = RerunForm(request.POST or None, initial=_initial(job, payload), is_short=is_short)
        if request.method == "POST" and form.is_valid():
            try:
                submitted = rerun_job(
                    job,
                    form.changes,
                    ports=ports.production_ports(),
                    idempotency_key=form.cleaned_data["key"],
                    by=actor(request),
                )
            except (Problem, Refused) as refusal:
                form.add_refusal(refusal)
            else:
                messages.success(request, f"This job runs {job.id} again.")
                return redirect(reverse("admin:jobs_job_change", args=[submitted.job.id]))
        schema = ModelConfig.objects.filter(name=job.model).values_list("payload_schema", flat=True).first()
        context = {
            **self.admin_site.each_context(request),
            "title": "Run again",
            "opts": self.opts,
            "job": job,
            "form": form,
            "is_short": is_short,
            "schema": json.dumps(schema, indent=2, ensure_ascii=False) if schema else "",
        }
        return TemplateResponse(request, "admin_ui/job/rerun.html", context)
