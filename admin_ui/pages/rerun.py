"""The page *Run again*: a new job with the payload and options of an earlier one, which can be changed."""

from __future__ import annotations

import json
from typing import Any

from django import forms
from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, reverse
from unfold.widgets import UnfoldAdminTextareaWidget

from admin_ui.actions.job_actions import JobActions
from admin_ui.actions.operations import actor
from admin_ui.parts.base_pages import HistoryAdmin
from admin_ui.parts.submit_form import SubmitForm, error_text, errors_of, new_key
from foundation.http_api.json_body import read_json
from foundation.http_api.problems import Problem
from gpus.models import ModelConfig
from jobs import ports
from jobs.domain.errors import Refused
from jobs.models import Job
from jobs.operations.rerun import find_with_payload, rerun_job

MAX_EDITED_BYTES = 256 * 1024
"""A longer payload is not put into the page; the API and the command line take it."""


class RerunForm(SubmitForm):
    """payload: JSON."""

    field_order = ("payload",)

    payload = forms.CharField(
        required=False,
        strip=False,
        widget=UnfoldAdminTextareaWidget(attrs={"rows": 16, "spellcheck": "false", "class": "mono"}),
        help_text="A JSON object, checked against the model's schema.",
    )

    def __init__(self, *args: Any, is_short: bool = True, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if not is_short:
            del self.fields["payload"]

    def clean_payload(self) -> Any:
        try:
            return read_json(self.cleaned_data["payload"].encode())
        except Problem as problem:
            raise forms.ValidationError([error_text(one, "") for one in errors_of(problem)]) from None


def _initial(job: Job, payload: str) -> dict[str, Any]:
    return {
        "payload": payload,
        "priority": job.priority,
        "tags": ", ".join(job.tags),
        "callback_url": job.callback_url,
        "key": new_key(),
    }


class RerunPage(JobActions, HistoryAdmin):
    """Mixin of the jobs' admin."""

    def get_urls(self) -> list[URLPattern]:
        return [*self.routes(("<str:job_id>/rerun/", self.rerun, "jobs_job_rerun")), *super().get_urls()]

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
                    form.options,
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
