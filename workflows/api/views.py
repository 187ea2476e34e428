"""Views of workflows: definitions and versions, runs and their nodes, answers and signals."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import asdict
from typing import Any

from django.conf import settings
from django.db.models import F, QuerySet
from django.urls import NoReverseMatch, reverse
from drf_spectacular.utils import OpenApiParameter
from rest_framework.request import Request
from rest_framework.response import Response

from foundation.http_api.json_body import read_body
from foundation.http_api.openapi import described
from foundation.http_api.parameters import (
    FLAG_SCHEMA,
    PARAMETERS,
    CursorPages,
    NamePages,
    allow_only,
    choice_parameter,
    flag_parameter,
    text_parameter,
    text_schema,
)
from foundation.http_api.problems import FieldError, Problem, parameter_problem
from foundation.ids import ID_PATTERN, is_id
from gpus.api.base import is_name, read_optional_body
from jobs.api.base import JobView, principal_of, tenant_of
from jobs.api.submit import ENVELOPE_BYTES, IDEMPOTENCY, keyed_request
from jobs.domain.access import Principal, Scope, may_see_details, may_see_payloads, shown_error
from jobs.models import Job
from jobs.submission.request import KeyedRequest
from workflows import operations
from workflows.api import answers, bodies
from workflows.definition.body import Definition
from workflows.domain.budget import measure
from workflows.domain.plan import NodeKind
from workflows.domain.states import NodeState, RunState
from workflows.erasing import erase_run_data
from workflows.execution.long_outputs import shown_output, url_of
from workflows.execution.waits import CANCELLED_BY, EXPIRED_BY
from workflows.inline import start_inline_run
from workflows.models import INLINE_PREFIX, Node, Run, Version, Wait
from workflows.reports.graph import map_counts
from workflows.reports.runs import ANY, NONE, RUN_FILTERS, RunFilter
from workflows.signals import send_signal

MOST_WAITS = 20
DEFINITION_BODY_BYTES = 4 * 1024 * 1024
"""Maximum size of a body with a definition, whose own limit is of its canonical JSON."""
PAGE_BYTES = 32 * 1024 * 1024
"""Outputs of one page of nodes, about: a result may have 16 MB, and a page 200 nodes."""
_NODES_READ = 8
"""Nodes whose outputs are read at once."""
_NUMBER = re.compile(r"[0-9]{1,9}\Z")
_KEY = re.compile(r"[a-z_][a-z0-9_]{0,63}(\[[0-9]{1,6}\])?\Z")
NAME = OpenApiParameter("name", str, OpenApiParameter.PATH, description="The workflow's name.")
NUMBER = OpenApiParameter("number", int, OpenApiParameter.PATH, description="The version's number.")
RUN_ID = OpenApiParameter("run_id", str, OpenApiParameter.PATH, description="Id of the run.")
KEY = OpenApiParameter(
    "key", str, OpenApiParameter.PATH, description="Key of the node, such as best or best[3]."
)
SIGNAL = OpenApiParameter("name", str, OpenApiParameter.PATH, description="The signal's name.")


PARENT = {"type": "string", "pattern": f"^({NONE}|{ANY}|{ID_PATTERN.pattern[:-2]})$"}
HEAVY = ("parent_node__settings", "parent_node__output", "parent_node__detail")
"""Large fields of a sub-run's parent node: no response contains them."""


def parent_parameter(request: Request) -> str | None:
    value = text_parameter(request, "parent")
    if value is None or value in (NONE, ANY) or is_id(value):
        return value
    raise parameter_problem("parent", f"Must be {NONE}, {ANY} or the id of a run.")


class RunPages(CursorPages):
    ordering = "-id"
    position = ID_PATTERN


class NodePages(CursorPages):
    ordering = "id"
    position = ID_PATTERN

    def end_after(self, count: int) -> None:
        """Let the page end after so many of its rows; the others are on the next one."""
        if self.page is not None and count < len(self.page):
            self.next_position = self.page[count].id
            self.page, self.has_next = self.page[:count], True


class VersionPages(CursorPages):
    ordering = "-number"
    position = _NUMBER


class WorkflowView(JobView):
    """Base of the views. A staff session reads all tenants' runs, as far as its permissions allow."""

    needs = {"GET": "workflows.view_run", "POST": "workflows.change_run", "PUT": "workflows.add_version"}
    scopes = {"GET": Scope.READ, "POST": Scope.SUBMIT, "PUT": Scope.SUBMIT}


# -- definitions ---------------------------------------------------------------------------------------------


class Workflows(WorkflowView):
    @described(
        "list_workflows",
        "Your workflows by name",
        answers={200: answers.WorkflowPage},
        refusals=(400, 403),
        parameters=PARAMETERS,
        tag="workflows",
    )
    def get(self, request: Request) -> Response:
        allow_only(request, ("cursor", "limit"))
        pages = NamePages()
        rows = operations.stored_workflows(tenant_of(request))
        page = pages.paginate_queryset(rows, request, view=self) or []
        return pages.get_paginated_response([{"name": row.name, "latest": row.latest} for row in page])


class WorkflowDetail(WorkflowView):
    max_body_bytes = DEFINITION_BODY_BYTES

    @described(
        "get_workflow",
        "The newest version of a workflow",
        answers={200: answers.WorkflowVersion},
        refusals=(403, 404),
        parameters=(NAME,),
        tag="workflows",
    )
    def get(self, request: Request, name: str) -> Response:
        return Response(version_json(_version(tenant_of(request), name, None)))

    @described(
        "put_workflow",
        "Store a definition as the newest version",
        answers={200: answers.WorkflowVersion, 201: answers.WorkflowVersion},
        refusals=(403, 404, 413),
        body=Definition,
        parameters=(NAME,),
        tag="workflows",
        description="201: a new version. 200: the newest version has the same content. The content of an "
        "earlier version becomes a new version, so a workflow can go back. Runs keep the version with which "
        "they started.",
    )
    def put(self, request: Request, name: str) -> Response:
        if not is_name(name):
            raise _unknown_workflow()
        given = request.data
        if isinstance(given, dict) and given.get("name") not in (None, name):
            error = FieldError("/name", "invalid", "The name in the body is not the one in the URL.")
            raise Problem(422, "validation_failed", "The name is ambiguous.", errors=[error])
        stored = operations.put_definition(
            tenant_of(request),
            name,
            given,
            ports=self.ports,
            key_models=principal_of(request).models,
            by=operator_of(request),
        )
        return Response(version_json(stored.version), status=201 if stored.is_new else 200)


class WorkflowVersions(WorkflowView):
    @described(
        "list_workflow_versions",
        "Versions of a workflow, newest first",
        answers={200: answers.WorkflowVersionPage},
        refusals=(400, 403, 404),
        parameters=(NAME, *PARAMETERS),
        tag="workflows",
        description="Without their definitions.",
    )
    def get(self, request: Request, name: str) -> Response:
        allow_only(request, ("cursor", "limit"))
        newest = _version(tenant_of(request), name, None)
        rows = Version.objects.filter(workflow=newest.workflow_id).select_related("workflow").defer("spec")
        pages = VersionPages()
        page = pages.paginate_queryset(rows, request, view=self) or []
        return pages.get_paginated_response([version_summary_json(row) for row in page])


class WorkflowVersionDetail(WorkflowView):
    @described(
        "get_workflow_version",
        "One version of a workflow",
        answers={200: answers.WorkflowVersion},
        refusals=(403, 404),
        parameters=(NAME, NUMBER),
        tag="workflows",
    )
    def get(self, request: Request, name: str, number: str) -> Response:
        tenant_id = tenant_of(request)
        if not _NUMBER.match(number):
            raise _unknown_workflow()
        return Response(version_json(_version(tenant_id, name, int(number))))


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
        key = _keyed(request, name)
        body = read_optional_body(bodies.StartRun, request.data or None)
        started = operations.start_run(
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
        key = _keyed(request, None)
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


def _keyed(request: Request, name: str | None) -> KeyedRequest | None:
    """Return the request's Idempotency-Key. name: of the workflow or signal in the path; None: the path has
    none. Raises Problem 400."""
    return keyed_request(request.headers.get("Idempotency-Key"), [name, request.data])


def _started(request: Request, started: operations.StartedRun) -> Response:
    shown = run_json(started.run, principal_of(request))
    return Response(shown, status=202, headers=_replay_headers(started.replayed))


def _replay_headers(replayed: bool) -> dict[str, str]:
    return {"Idempotency-Replayed": "true"} if replayed else {}


# -- runs ----------------------------------------------------------------------------------------------------


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


class RunNodes(WorkflowView):
    @described(
        "list_run_nodes",
        "Nodes of a run that have started or ended, with children of maps, in the order of their starts",
        answers={200: answers.RunNodePage},
        refusals=(400, 404),
        parameters=(
            RUN_ID,
            OpenApiParameter("state", str, enum=[state.value for state in NodeState]),
            OpenApiParameter("key", text_schema(80)),
            OpenApiParameter("map", text_schema(64), description="Key of a map: only its items."),
            *PARAMETERS,
        ),
        tag="workflows",
        description="A page with long outputs has fewer nodes than `limit`; `next` has the others.",
    )
    def get(self, request: Request, run_id: str) -> Response:
        allow_only(request, ("state", "key", "map", "cursor", "limit"))
        rows = Node.objects.filter(run=visible_run(request, run_id))
        if state := choice_parameter(request, "state", [state.value for state in NodeState]):
            rows = rows.filter(state=state)
        if key := text_parameter(request, "key", max_length=80):
            rows = rows.filter(key=key)
        if of_map := text_parameter(request, "map"):
            rows = rows.filter(base=of_map, index__isnull=False)
        pages = NodePages()
        found = pages.paginate_queryset(rows.annotate(child_run_id=F("child_runs__id")), request, view=self)
        shown = nodes_json(found or [], principal_of(request), most_bytes=PAGE_BYTES)
        pages.end_after(len(shown))
        return pages.get_paginated_response(shown)


class CancelRun(WorkflowView):
    scopes = {"POST": Scope.CANCEL}

    @described(
        "cancel_run",
        "Cancel a run; it ends once its jobs have",
        answers={202: answers.Run},
        refusals=(403, 404, 409),
        parameters=(RUN_ID,),
        tag="workflows",
    )
    def post(self, request: Request, run_id: str) -> Response:
        run = visible_run(request, run_id)
        operations.cancel_run(run.id, ports=self.ports, by=operator_of(request))
        return Response(run_json(visible_run(request, run_id), principal_of(request)), status=202)


class PauseRun(WorkflowView):
    @described(
        "pause_run",
        "Start no further nodes of a run",
        answers={200: answers.Run},
        refusals=(403, 404, 409),
        parameters=(RUN_ID,),
        tag="workflows",
        description="So do its sub-runs of all levels. Jobs and waits under way go on to their end.",
    )
    def post(self, request: Request, run_id: str) -> Response:
        operations.pause_run(visible_run(request, run_id).id, ports=self.ports, by=operator_of(request))
        return Response(run_json(visible_run(request, run_id), principal_of(request)))


class ResumeRun(WorkflowView):
    @described(
        "resume_run",
        "Start nodes of a paused run again",
        answers={200: answers.Run},
        refusals=(403, 404, 409),
        parameters=(RUN_ID,),
        tag="workflows",
    )
    def post(self, request: Request, run_id: str) -> Response:
        operations.resume_run(visible_run(request, run_id).id, ports=self.ports, by=operator_of(request))
        return Response(run_json(visible_run(request, run_id), principal_of(request)))


class RestartRun(WorkflowView):
    @described(
        "restart_run",
        "Run the failed nodes of a run again, and all nodes after them",
        answers={202: answers.Run},
        refusals=(403, 404, 409, 429),
        body=bodies.RestartRun,
        body_required=False,
        parameters=(RUN_ID,),
        tag="workflows",
        description="The other nodes keep their outputs. A map runs only its failed items again. 409: the "
        "run has not ended, `nothing_to_restart`, or `output_not_wanted`: of a sub-run, whose parent would "
        "drop its output.",
    )
    def post(self, request: Request, run_id: str) -> Response:
        run = visible_run(request, run_id)
        body = read_optional_body(bodies.RestartRun, request.data or None)
        run = operations.restart_run(
            run.id,
            keys=body.nodes,
            ports=self.ports,
            key_models=principal_of(request).models,
            by=operator_of(request),
        )
        return Response(run_json(run, principal_of(request)), status=202)


class EraseRunData(WorkflowView):
    scopes = {"DELETE": Scope.SUBMIT}
    needs = {"DELETE": "workflows.change_run"}

    @described(
        "erase_run_data",
        "Erase what a run and all its jobs and sub-runs were given and made",
        answers={200: answers.RunDataErased},
        refusals=(403, 404, 409),
        parameters=(RUN_ID,),
        tag="workflows",
        description="The run stays, with its nodes, times, states, and the hashes of its inputs and output; "
        "it can't be restarted. Artifacts that no other job or run refers to are gone at once (410). "
        "409: the run has not ended.",
    )
    def delete(self, request: Request, run_id: str) -> Response:
        allow_only(request, ())
        principal = principal_of(request)
        by = principal.name if principal.is_operator else None
        try:
            run = erase_run_data(visible_run(request, run_id).id, ports=self.ports, by=by)
        except Run.DoesNotExist:  # retention removed it meanwhile
            raise unknown_run() from None
        return Response(
            {"run_id": run.id, "requested_at": run.erase_requested_at, "erased_at": run.erased_at}
        )


def max_answer_bytes() -> int:
    """Return the maximum size of a body with an answer or of a signal, in bytes."""
    return settings.DISPATCHER.workflow_answer_bytes + ENVELOPE_BYTES


class AnswerWait(WorkflowView):
    max_body_bytes = staticmethod(max_answer_bytes)
    body_setting = "DISPATCHER_WORKFLOW_ANSWER_BYTES"

    @described(
        "answer_wait",
        "Answer a human node of a run",
        answers={200: answers.Run},
        refusals=(403, 404, 409, 413, 429),
        body=bodies.Answer,
        parameters=(RUN_ID, KEY, IDEMPOTENCY),
        tag="workflows",
        description="Of several answers the first one counts: the others get 409. The same answer again by "
        "the same key gets 200, too, so it can be repeated safely; with `round` or an Idempotency-Key it "
        "answers no question of a later round. 403 `not_yours`: the node's `answer_by` does not name this "
        "key. 410: the time for an answer is over.",
    )
    def post(self, request: Request, run_id: str, key: str) -> Response:
        run = visible_run(request, run_id)
        if not _KEY.match(key):
            raise operations.UnknownNode
        keyed = keyed_request(request.headers.get("Idempotency-Key"), [run_id, key, request.data])
        body = read_body(bodies.Answer, request.data)
        principal = principal_of(request)
        answered = operations.answer_wait(
            run,
            key,
            body.answer,
            by=principal.name,
            key_name=_key_name(principal),
            round_number=body.round,
            idempotency_key=keyed,
            ports=self.ports,
        )
        shown = run_json(visible_run(request, run_id), principal)
        return Response(shown, headers=_replay_headers(answered.replayed))


class SendSignal(WorkflowView):
    max_body_bytes = staticmethod(max_answer_bytes)
    body_setting = "DISPATCHER_WORKFLOW_ANSWER_BYTES"

    @described(
        "send_signal",
        "Send a signal to the runs that wait for it",
        answers={200: answers.Taken},
        refusals=(403, 413, 429),
        body=bodies.SentSignal,
        body_required=False,
        parameters=(SIGNAL, IDEMPOTENCY),
        tag="workflows",
        description="A signal that no run waits for is taken by none, and is not kept. A repeated request "
        "with the same Idempotency-Key and body returns the same number, and ends no further waits. 413 "
        "`signal_too_large`: too many nodes wait for a body of this size.",
    )
    def post(self, request: Request, name: str) -> Response:
        key = _keyed(request, name)
        body = read_optional_body(bodies.SentSignal, request.data or None)
        tenant_id = tenant_of(request)
        if not is_name(name):
            return Response({"taken": 0})
        sent = send_signal(
            tenant_id,
            name,
            body.body,
            run_id=body.run_id,
            idempotency_key=key,
            ports=self.ports,
            by=operator_of(request),
        )
        return Response({"taken": sent.taken}, headers=_replay_headers(sent.replayed))


# -- representations -----------------------------------------------------------------------------------------


def runs_visible_to(principal: Principal) -> QuerySet[Run]:
    """Return all runs for an operator, otherwise those of the principal's tenant."""
    rows = Run.objects.select_related("version__workflow", "parent_node").defer(*HEAVY)
    if principal.is_operator:
        return rows
    return rows.none() if principal.tenant_id is None else rows.filter(tenant=principal.tenant_id)


def visible_run(request: Request, run_id: str) -> Run:
    """Return a run that the reader may see. Raises Problem 404."""
    found = is_id(run_id) and runs_visible_to(principal_of(request)).filter(id=run_id).first()
    if not found:
        raise unknown_run()
    return found


def unknown_run() -> Problem:
    error = FieldError("/run_id", "unknown_run", "There is no such run.", place="path")
    return Problem(404, "unknown_run", "There is no such run.", errors=[error])


def operator_of(request: Request) -> str | None:
    """Return the operator, for the audit; a tenant's own requests have no entry."""
    principal = principal_of(request)
    return principal.name if principal.is_operator else None


def _key_name(principal: Principal) -> str | None:
    """Return the name of the principal's API key; None for an operator."""
    return None if principal.is_operator else principal.key_name


def _may_answer(wait: Wait, reader: Principal) -> bool:
    """Return True if the reader may answer a question, by its rights and by the names in the question."""
    if reader.user is not None:
        return reader.has_perm(AnswerWait.needs["POST"])
    return AnswerWait.scopes["POST"] in reader.scopes and operations.may_answer(wait, _key_name(reader))


def _version(tenant_id: int, name: str, number: int | None) -> Version:
    found = operations.find_version(tenant_id, name, number) if _may_be_workflow(name) else None
    if found is None:
        raise _unknown_workflow()
    return found


def _may_be_workflow(name: str) -> bool:
    return is_name(name.removeprefix(INLINE_PREFIX))


def _unknown_workflow() -> Problem:
    return Problem(
        404, operations.UnknownWorkflow.code, "There is no such workflow, or no such version of it."
    )


def version_summary_json(version: Version) -> dict[str, Any]:
    """Return the version's body in a list: without its definition, which may be large."""
    return {
        "name": version.workflow.name,
        "version": version.number,
        "sha256": version.sha256,
        "created_at": version.created_at,
    }


def version_json(version: Version) -> dict[str, Any]:
    return {**version_summary_json(version), "definition": version.spec}


def summary_json(run: Run) -> dict[str, Any]:
    """Return the run's body in a list: without its inputs and output, which may be large."""
    error = None
    if run.error_code:
        error = {"code": run.error_code, "message": run.error_message, "node": run.error_node or None}
    return {
        "run_id": run.id,
        "workflow": run.version.workflow.name,
        "version": run.version.number,
        "status": run.state,
        "parent": parent_json(run),
        "round": run.round,
        "paused": run.is_paused,
        "error": error,
        "counts": dict(Counter(run.node_states.values())),
        "priority": run.priority,
        "tags": run.tags,
        "created_at": run.created_at,
        "finished_at": run.finished_at,
        "deadline_at": run.deadline_at,
        "erased_at": run.erased_at,
        "urls": {
            "self": f"/api/v1/runs/{run.id}",
            "nodes": f"/api/v1/runs/{run.id}/nodes",
            "events": f"/api/v1/runs/{run.id}/events",
            "explain": f"/api/v1/runs/{run.id}/explain",
            "cancel": f"/api/v1/runs/{run.id}/cancel",
            "restart": f"/api/v1/runs/{run.id}/restart",
            "page": page_of_run(run.id),
        },
    }


def parent_json(run: Run) -> dict[str, str] | None:
    """Return the node that a sub-run belongs to; None for a run that was started."""
    node = run.parent_node
    return None if node is None else {"run_id": node.run_id, "node": node.key}


def page_of_run(run_id: str) -> str | None:
    """Return the path of a run's page in the admin; None in a process without pages."""
    try:
        return reverse("admin:workflows_run_change", args=[run_id])
    except NoReverseMatch:
        return None


def run_json(run: Run, reader: Principal) -> dict[str, Any]:
    """Return the run's body; inputs and output only if the reader may see payloads."""
    waits: list[str] = []
    if run.state == RunState.RUNNING and NodeState.RUNNING in run.node_states.values():
        open_waits = Wait.objects.filter(
            node__run=run, answered_at=None, kind__in=(NodeKind.HUMAN.value, NodeKind.SIGNAL.value)
        )
        waits = list(open_waits.order_by("node_id").values_list("node__key", flat=True)[:MOST_WAITS])
    shows = may_see_payloads(reader)
    return {
        **summary_json(run),
        "waiting_for": waits,
        "inputs": run.inputs if shows else None,
        "output": shown_output(run) if shows else None,
        "output_url": url_of(run.output_artifact) if shows else None,
    }


def nodes_json(nodes: list[Any], reader: Principal, *, most_bytes: int | None = None) -> list[dict[str, Any]]:
    """Return the bodies of nodes; outputs only if the reader may see payloads.

    most_bytes: of outputs and questions: the list ends with the node that exceeds it.
    """
    if most_bytes is None:
        return _nodes_json(nodes, reader)
    shown: list[dict[str, Any]] = []
    for first in range(0, len(nodes), _NODES_READ):
        for one in _nodes_json(nodes[first : first + _NODES_READ], reader):
            shown.append(one)
            most_bytes -= measure(
                [one["output"], one["question"] and one["question"]["choose_from"]], None
            ).count
            if most_bytes < 0:
                return shown
    return shown


def _nodes_json(nodes: list[Any], reader: Principal) -> list[dict[str, Any]]:
    shows, in_full = may_see_payloads(reader), may_see_details(reader)
    job_ids = [node.job_id for node in nodes if node.job_id and node.state == NodeState.COMPLETED]
    asked = [node.id for node in nodes if node.kind == NodeKind.HUMAN and node.finished_at is not None]
    answered = Wait.objects.filter(node_id__in=asked).exclude(answered_at=None)
    answerers = dict(answered.values_list("node_id", "answered_by"))
    open_nodes = [node.id for node in nodes if node.state == NodeState.RUNNING and shows]
    questions = {
        wait.node_id: {
            "title": wait.options.get("title", ""),
            "choose_from": wait.options.get("choose_from"),
            "form": wait.options.get("form"),
            "expires_at": wait.due_at,
            "answer_by": wait.options.get("answer_by"),
            "may_answer": _may_answer(wait, reader),
        }
        for wait in Wait.objects.filter(node_id__in=open_nodes, kind=NodeKind.HUMAN.value, answered_at=None)
    }
    counts = map_counts({node.id: node for node in nodes if node.index is None})
    results = dict(Job.objects.filter(id__in=job_ids if shows else []).values_list("id", "result"))
    return [
        {
            "key": node.key,
            "round": node.round,
            "kind": node.kind,
            "state": node.state,
            "job_id": node.job_id,
            "child_run_id": node.child_run_id,
            "cached_from": node.cached_from,
            "output": (results.get(node.job_id) if node.job_id else shown_output(node)) if shows else None,
            "output_url": url_of(node.output_artifact) if shows else None,
            "question": questions.get(node.id),
            "answered_by": _shown_answerer(answerers.get(node.id, ""), in_full=in_full),
            # a job's text may come from its GPU server; the others are our own
            "error": shown_error(
                node.code,
                node.detail,
                in_full=in_full or node.job_id is None,
                tenant_errors=settings.DISPATCHER.tenant_errors,
            ),
            "started_at": node.started_at,
            "finished_at": node.finished_at,
            "items": asdict(counts[node.id]) if node.id in counts else None,
        }
        for node in nodes
    ]


def _shown_answerer(by: str, *, in_full: bool) -> str | None:
    """Return who answered: an API key by its prefix. Tenants do not read the names of operators."""
    if not by or by == CANCELLED_BY:
        return None
    return by if in_full or by.startswith("key:") or by == EXPIRED_BY else "operator"
