"""The view of a run's nodes, in pages of bounded size."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from django.conf import settings
from django.db.models import F
from drf_spectacular.utils import OpenApiParameter
from rest_framework.request import Request
from rest_framework.response import Response

from foundation.http_api.openapi import described
from foundation.http_api.parameters import (
    PARAMETERS,
    CursorPages,
    allow_only,
    choice_parameter,
    text_parameter,
    text_schema,
)
from foundation.ids import ID_PATTERN
from jobs.api.base import principal_of
from jobs.domain.access import Principal, may_see_details, may_see_payloads, shown_error
from jobs.models import Job
from workflows.api import answers
from workflows.api.base import RUN_ID, WorkflowView, key_name_of, visible_run
from workflows.api.waits import AnswerWait
from workflows.domain.budget import measure
from workflows.domain.plan import NodeKind
from workflows.domain.states import NodeState
from workflows.execution.long_outputs import shown_output, url_of
from workflows.execution.waits import CANCELLED_BY, EXPIRED_BY
from workflows.models import Node, Wait
from workflows.operations.answers import may_answer
from workflows.reports.graph import map_counts

PAGE_BYTES = 32 * 1024 * 1024
"""Outputs of one page of nodes, about: a result may have 16 MB, and a page 200 nodes."""

_NODES_READ = 8
"""Nodes whose outputs are read at once."""


class NodePages(CursorPages):
    ordering = "id"
    position = ID_PATTERN

    def end_after(self, count: int) -> None:
        """Let the page end after so many of its rows; the others are on the next one."""
        if self.page is not None and count < len(self.page):
            self.next_position = self.page[count].id
            self.page, self.has_next = self.page[:count], True


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


def _may_answer(wait: Wait, reader: Principal) -> bool:
    """Return True if the reader may answer a question, by its rights and by the names in the question."""
    if reader.user is not None:
        return reader.has_perm(AnswerWait.needs["POST"])
    return AnswerWait.scopes["POST"] in reader.scopes and may_answer(wait, key_name_of(reader))


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
