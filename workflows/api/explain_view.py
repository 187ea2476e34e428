"""View of why a run waits, when it will probably end, and what it cost."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from rest_framework.request import Request
from rest_framework.response import Response

from foundation.http_api.openapi import described
from foundation.http_api.parameters import allow_only
from jobs.ports import Ports
from workflows.api import answers
from workflows.api.base import RUN_ID, WorkflowView, visible_run
from workflows.models import Run
from workflows.reports.cost import cost_of
from workflows.reports.explain import RunReason, explain_run
from workflows.reports.forecast import forecast
from workflows.reports.graph import graph_of, plan_of


class ExplainRun(WorkflowView):
    @described(
        "explain_run",
        "Why a run waits, when it will probably end, and what it cost",
        answers={200: answers.RunExplanation},
        refusals=(404,),
        parameters=(RUN_ID,),
        tag="workflows",
        description="Up to 20 nodes under way, and up to five of their waiting jobs with reasons.",
    )
    def get(self, request: Request, run_id: str) -> Response:
        allow_only(request, ())
        return Response(explanation_json(visible_run(request, run_id), self.ports))


def explanation_json(run: Run, ports: Ports) -> dict[str, Any]:
    """Return the body of a run's explanation."""
    plan = plan_of(run)
    graph = graph_of(run, plan)
    found = explain_run(run, plan, graph, ports)
    ends, cost = forecast(run, plan, graph, ports, reasons=found), cost_of(run)
    return {
        "run_id": run.id,
        "status": run.state,
        "reasons": [_reason_json(reason) for reason in found],
        "ends_in": None if ends is None else asdict(ends),
        "cost": {"gpu_seconds": cost.total, "nodes": dict(cost.by_node)},
    }


def _reason_json(reason: RunReason) -> dict[str, Any]:
    shown = asdict(reason)
    starts = shown.pop("starts")
    return {**shown, "node": reason.node or None, "starts_in": starts}
