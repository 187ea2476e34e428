"""Runs in JSON, as the reader may see them."""

from __future__ import annotations

from collections import Counter
from typing import Any

from django.urls import NoReverseMatch, reverse

from jobs.domain.access import Principal, may_see_payloads
from workflows.domain.plan import NodeKind
from workflows.domain.states import NodeState, RunState
from workflows.execution.long_outputs import shown_output, url_of
from workflows.models import Run, Wait

MOST_WAITS = 20

HEAVY = ("parent_node__settings", "parent_node__output", "parent_node__detail")
"""Large fields of a sub-run's parent node: no response contains them."""


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
