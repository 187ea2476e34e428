"""Admin actions on workflow runs. Each calls an operation of `workflows.operations`, which writes the audit
entry."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.http import HttpRequest, HttpResponse

from admin_ui.actions.operations import act_on_one, actor
from admin_ui.parts.typed_decorators import operation
from jobs import ports
from workflows.domain.states import NodeState, RunState
from workflows.models import Run
from workflows.operations.control import cancel_run, pause_run, resume_run
from workflows.operations.erase import erase_run_data
from workflows.operations.restart import restart_run

_PAGE = "admin:workflows_run_change"
_RUNS = "_runs_to_operate"
"""Attribute of a request: the runs that `RunActions` has read for it."""
_FIELDS = (
    "state", "finished_at", "paused_at", "cancel_requested_at", "erase_requested_at", "parent_node_id",
    "node_states",
)  # fmt: skip
"""Of a run, those that buttons depend on."""
_AGAIN = {NodeState.FAILED.value, NodeState.CANCELLED.value}


class RunActions:
    """Mixin of the runs' page: buttons with a dialog."""

    @operation(
        "Pause",
        permissions=["pause"],
        icon="pause",
        confirm=(
            "Pause this run?",
            "Jobs and waits under way go on to their end; no further ones start, nor in sub-runs.",
            "Pause it",
        ),
    )
    def pause_one(self, request: HttpRequest, form: Any, object_id: str) -> HttpResponse:
        return _done(request, object_id, pause_run, "paused")

    @operation(
        "Resume",
        permissions=["resume"],
        icon="play_arrow",
        confirm=("Resume this run?", "Its next nodes start.", "Resume it"),
    )
    def resume_one(self, request: HttpRequest, form: Any, object_id: str) -> HttpResponse:
        return _done(request, object_id, resume_run, "resumed")

    @operation(
        "Cancel run",
        permissions=["cancel"],
        icon="block",
        confirm=(
            "Cancel this run?",
            "Its jobs are stopped on their GPUs, its sub-runs too.",
            "Yes, cancel it",
        ),
    )
    def cancel_one(self, request: HttpRequest, form: Any, object_id: str) -> HttpResponse:
        return _done(request, object_id, cancel_run, "being cancelled")

    @operation(
        "Restart from failed",
        permissions=["restart"],
        icon="replay",
        confirm=(
            "Restart this run from what failed?",
            "Nodes that failed or were cancelled run again, with all nodes after them. The others keep their "
            "outputs; a map runs only its failed items again.",
            "Restart it",
        ),
    )
    def restart_one(self, request: HttpRequest, form: Any, object_id: str) -> HttpResponse:
        return _done(request, object_id, restart_run, "restarted")

    @operation(
        "Erase data",
        permissions=["erase"],
        icon="delete_forever",
        confirm=(
            "Erase the data of this run?",
            "Inputs, outputs, answers, error messages, log lines and files of the run, its jobs and its "
            "sub-runs are erased for ever. Nodes, times, states and hashes stay. The run can't be restarted.",
            "Yes, erase it",
        ),
    )
    def erase_one(self, request: HttpRequest, form: Any, object_id: str) -> HttpResponse:
        def act(run_id: str) -> str:
            run = erase_run_data(run_id, by=actor(request), ports=ports.production_ports())
            return "erased" if run.erased_at else "being erased: the data of its jobs follows within minutes"

        return act_on_one(request, object_id, act, page=_PAGE)

    def has_operate_permission(self, request: HttpRequest, object_id: str | None = None) -> bool:
        return bool(request.user.has_perm("workflows.change_run"))

    def has_pause_permission(self, request: HttpRequest, object_id: str | None = None) -> bool:
        run = self._run_to_operate(request, object_id)
        return run is not None and run.finished_at is None and not run.is_paused

    def has_resume_permission(self, request: HttpRequest, object_id: str | None = None) -> bool:
        run = self._run_to_operate(request, object_id)
        return run is not None and run.is_paused

    def has_cancel_permission(self, request: HttpRequest, object_id: str | None = None) -> bool:
        run = self._run_to_operate(request, object_id)
        return run is not None and run.finished_at is None and run.cancel_requested_at is None

    def has_restart_permission(self, request: HttpRequest, object_id: str | None = None) -> bool:
        run = self._ended_run(request, object_id)
        return (
            run is not None
            and run.state in (RunState.FAILED, RunState.CANCELLED)
            and not _AGAIN.isdisjoint(run.node_states.values())
        )

    def may_choose_nodes(self, request: HttpRequest, object_id: str) -> bool:
        """Return True if the user may restart nodes of the run, and it has ended."""
        return self._ended_run(request, object_id) is not None

    def has_erase_permission(self, request: HttpRequest, object_id: str | None = None) -> bool:
        return self._ended_run(request, object_id) is not None

    def _ended_run(self, request: HttpRequest, object_id: str | None) -> Run | None:
        """The run of `_run_to_operate` if it has ended, is no sub-run and still has its data; else None."""
        run = self._run_to_operate(request, object_id)
        if run is None or run.finished_at is None:
            return None
        return run if run.parent_node_id is None and run.erase_requested_at is None else None

    def _run_to_operate(self, request: HttpRequest, object_id: str | None) -> Run | None:
        """The run, with the fields that buttons depend on; None without permission. Read once per request."""
        if not self.has_operate_permission(request):
            return None
        known = request.__dict__.setdefault(_RUNS, {})
        if object_id not in known:
            rows = Run.objects.only(*_FIELDS)
            known[object_id] = rows.filter(id=object_id).first()
        found: Run | None = known[object_id]
        return found


def _done(request: HttpRequest, run_id: str, act: Callable[..., Any], outcome: str) -> HttpResponse:
    def one(run: str) -> str:
        act(run, by=actor(request), ports=ports.production_ports())
        return outcome

    return act_on_one(request, run_id, one, page=_PAGE)
