"""Views that start, list and show runs."""

from __future__ import annotations

from django.conf import settings
from drf_spectacular.utils import OpenApiParameter
from rest_framework.request import Request
from rest_framework.response import Response

from foundation.http_api.json_body import read_body
from foundation.http_api.openapi import described
from foundation.http_api.parameters import (
    FLAG_SCHEMA,
    PARAMETERS,
    CursorPages,
    allow_only,
    choice_parameter,
    flag_parameter,
    text_parameter,
    text_schema,
)
from foundation.http_api.problems import parameter_problem
from foundation.ids import ID_PATTERN, is_id
from gpus.api.base import is_name, read_optional_body
from jobs.api.base import operator_of, principal_of, tenant_of
from jobs.api.submit import ENVELOPE_BYTES, IDEMPOTENCY, replay_headers
from workflows.api import answers, bodies
from workflows.api.base import (
    NAME,
    RUN_ID,
    WorkflowView,
    keyed_by_target,
    runs_visible_to,
    visible_run,
)
from workflows.api.definitions import DEFINITION_BODY_BYTES
from workflows.api.representations import run_json, summary_json
from workflows.domain.states import RunState
from workflows.operations.inline import start_inline_run
from workflows.operations.start import StartedRun, start_run
from workflows.reports.runs import ANY, NONE, RUN_FILTERS, RunFilter

PARENT = {"type": "string", "pattern": f"^({NONE}|{ANY}|{ID_PATTERN.pattern[:-2]})$"}


def parent_parameter(request: Request) -> str | None:
    value = text_parameter(request, "parent")
    if value is None or value in (NONE, ANY) or is_id(value):
        return value
    raise parameter_problem("parent", f"Must be {NONE}, {ANY} or the id of a run.")


class RunPages(CursorPages):
    ordering = "-id"
    position = ID_PATTERN


def max_start_bytes() -> int:
    """Return the maximum size of the body that starts a run, in bytes."""
    return settings.DISPATCHER.workflow_input_bytes + ENVELOPE_BYTES


class StartRun(WorkflowView):
    max_body_bytes = staticmethod(max_start_bytes)

    @described(
        "start_run",
        "Start a run of a workflow",
        answers={202: answers.Run},
        refusals=(403, 404, 413, 429),
        body=bodies.StartRun,
        body_required=False,
        parameters=(NAME, IDEMPOTENCY),
        tag="workflows",
        description="A repeated request with the same Idempotency-Key and body returns the same run.",
    )
    def post(self, request: Request, name: str) -> Response:
        key = keyed_by_target(request, name)
        body = read_optional_body(bodies.StartRun, request.data or None)
        started = start_run(
            tenant_of(request),
            name if is_name(name) else "",
            body.inputs,
            number=body.version,
            idempotency_key=key,
            ports=self.ports,
            key_models=principal_of(request).models,
            by=operator_of(request),
            **body.options(),
        )
        return _started(request, started)


class StartInlineRun(WorkflowView):
    max_body_bytes = staticmethod(lambda: DEFINITION_BODY_BYTES + max_start_bytes())

    @described(
        "start_inline_run",
        "Start a run of the definition in the body",
        answers={202: answers.Run},
        refusals=(403, 409, 413, 429),
        body=bodies.StartInlineRun,
        parameters=(IDEMPOTENCY,),
        tag="workflows",
        description="The definition is checked as `put_workflow` checks it, with pointers below /definition. "
        "No stored workflow changes: the run's `workflow` is `_` and the definition's name, and equal "
        "definitions share a version of it, which stays as long as one of its runs. A repeated request with "
        "the same Idempotency-Key and body returns the same run.",
    )
    def post(self, request: Request) -> Response:
        key = keyed_by_target(request, None)
        body = read_body(bodies.StartInlineRun, request.data)
        started = start_inline_run(
            tenant_of(request),
            body.definition,
            body.inputs,
            idempotency_key=key,
            ports=self.ports,
            key_models=principal_of(request).models,
            by=operator_of(request),
            **body.options(),
        )
        return _started(request, started)


def _started(request: Request, started: StartedRun) -> Response:
    shown = run_json(started.run, principal_of(request))
    return Response(shown, status=202, headers=replay_headers(started.replayed))


class Runs(WorkflowView):
    @described(
        "list_runs",
        "Your runs, newest first",
        answers={200: answers.RunPage},
        refusals=(400,),
        parameters=(
            OpenApiParameter("status", str, enum=[state.value for state in RunState]),
            OpenApiParameter("workflow", text_schema()),
            OpenApiParameter(
                "parent",
                PARENT,
                description="`none`: runs that were started; `any`: their sub-runs, too; the id of a run: "
                "its sub-runs. Default: `none`; with `waiting=true`, `any`, as the sub-run gets the answer.",
            ),
            OpenApiParameter("tag", text_schema()),
            OpenApiParameter("paused", FLAG_SCHEMA),
            OpenApiParameter(
                "waiting", FLAG_SCHEMA, description="Whether a node of it waits for a person or a signal."
            ),
            *PARAMETERS,
        ),
        tag="workflows",
    )
    def get(self, request: Request) -> Response:
        allow_only(request, (*RUN_FILTERS, "cursor", "limit"))
        wanted = RunFilter(
            status=choice_parameter(request, "status", [state.value for state in RunState]),
            workflow=text_parameter(request, "workflow"),
            parent=parent_parameter(request),
            tag=text_parameter(request, "tag"),
            paused=flag_parameter(request, "paused"),
            waiting=flag_parameter(request, "waiting"),
        )
        principal = principal_of(request)
        rows = runs_visible_to(principal).defer("inputs", "output", "kept_maps")
        rows = wanted.of(rows, None if principal.is_operator else principal.tenant_id)
        pages = RunPages()
        page = pages.paginate_queryset(rows, request, view=self) or []
        return pages.get_paginated_response([summary_json(run) for run in page])


class RunDetail(WorkflowView):
    @described(
        "get_run",
        "A run",
        answers={200: answers.Run},
        refusals=(404,),
        parameters=(RUN_ID,),
        tag="workflows",
    )
    def get(self, request: Request, run_id: str) -> Response:
        return Response(run_json(visible_run(request, run_id), principal_of(request)))
