"""The page *Start a run*: fields made from the schema of a version's inputs, and the options of a run."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.template.response import TemplateResponse
from django.urls import reverse
from unfold.widgets import UnfoldAdminTextInputWidget

from admin_ui.actions.operations import actor
from admin_ui.parts.base_pages import OperatorAdmin
from admin_ui.parts.schema_fields import Unreadable, fields_of
from admin_ui.parts.submit_form import SubmitForm, errors_of, field_name, new_key
from admin_ui.parts.typed_decorators import operation
from admin_ui.parts.viewer import show_json
from foundation.http_api.json_body import read_body
from foundation.http_api.problems import Problem
from jobs import ports
from jobs.domain.errors import Refused
from jobs.submission.request import DEFAULT_PRIORITY, KeyedRequest, fingerprint
from workflows.api.bodies import StartRun
from workflows.definition.read import read_definition
from workflows.models import Version
from workflows.operations.start import StartedRun, start_run


class StartForm(SubmitForm):
    """Options of a run."""

    field_order = ("priority", "deadline_seconds")

    deadline_seconds = forms.FloatField(
        required=False,
        widget=UnfoldAdminTextInputWidget(attrs={"inputmode": "decimal"}),
        help_text="Seconds from its start after which a run that has not ended fails.",
    )


class StartRunPage(OperatorAdmin):
    """Mixin of the versions' admin."""

    @operation("Start a run", permissions=["start"], icon="play_arrow")
    def start_one(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """GET: the form. POST: start a run of this version, which a newer one does not replace meanwhile."""
        version: Version | None = self.get_object(request, object_id)
        if version is None:
            raise Http404
        try:
            schema = read_definition(version.spec).inputs
        except Problem as problem:
            messages.error(request, f"This release can't read the definition: {problem}")
            return redirect(reverse("admin:workflows_version_change", args=[object_id]))
        inputs = fields_of(schema, "Inputs", required=False)
        form = StartForm(request.POST or None, initial={"priority": DEFAULT_PRIORITY, "key": new_key()})
        errors: list[str] = []
        if request.method == "POST":
            sent, wrong = request.POST.dict(), dict[str, str]()
            try:
                value = inputs.read(sent)
                if form.is_valid():
                    started = _start(version, value, form, by=actor(request))
                    if started.replayed:
                        messages.info(request, "This form had started the run already.")
                    else:
                        messages.success(request, f"A run of {version} has started.")
                    return redirect(reverse("admin:workflows_run_change", args=[started.run.id]))
            except Unreadable as unreadable:
                wrong = dict(unreadable.errors)
            except (Problem, Refused) as refusal:
                form.add_refusal(refusal, but="inputs")
                of_inputs = [one for one in errors_of(refusal) if field_name(one) == "inputs"]
                wrong = {one.pointer.removeprefix("/inputs"): one.detail for one in of_inputs}
            inputs, errors = inputs.sent(sent, wrong), inputs.others(wrong)
        context = {
            **self.admin_site.each_context(request),
            "title": "Start a run",
            "opts": self.opts,
            "version": version,
            "form": form,
            "inputs": inputs,
            "errors": errors,
            "schema": show_json(schema).html if isinstance(schema, dict) else "",
        }
        return TemplateResponse(request, "admin_ui/run/start.html", context)

    def has_start_permission(self, request: HttpRequest, object_id: str | None = None) -> bool:
        return bool(request.user.has_perm("workflows.change_run"))


def _start(version: Version, inputs: Any, form: StartForm, *, by: str) -> StartedRun:
    """Start a run as the API does. Raises Problem, Refused."""
    options = {name: value for name, value in form.options.items() if value is not None}
    body = {"inputs": inputs, "version": version.number, **options}
    read = read_body(StartRun, body)
    name = version.workflow.name
    return start_run(
        version.workflow.tenant_id,
        name,
        read.inputs,
        number=read.version,
        idempotency_key=KeyedRequest(form.cleaned_data["key"], fingerprint([name, body])),
        ports=ports.production_ports(),
        by=by,
        **read.options(),
    )
