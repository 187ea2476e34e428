"""A run's own page: graph, nodes with their times, open waits as forms, why it waits, events and callbacks.

The number of queries and the size of the page are bounded: a map is one node, and a table lists the first
nodes only. The live part is read again every two seconds; without a change the answer is empty.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db.models import Prefetch
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import URLPattern
from django.utils import timezone

from admin_ui.pages.run_restart import RestartPage
from admin_ui.pages.run_waits import WaitForms, questions_of, signals_of
from admin_ui.parts.base_pages import sees_payloads
from admin_ui.parts.viewer import Shown, erased_mark, show_json
from jobs import ports
from jobs.models import Callback, CallbackTry
from workflows.domain.plan import NodeKind
from workflows.domain.states import NodeState, RunState
from workflows.event_stream import shown_run_event
from workflows.execution.callbacks import callbacks_of
from workflows.execution.long_outputs import shown_output
from workflows.models import Node, Run, RunEvent
from workflows.reports.cost import Cost, cost_of
from workflows.reports.explain import RunReason, explain_run
from workflows.reports.forecast import Forecast, forecast
from workflows.reports.graph import Graph, GraphNode, graph_of, plan_of

NODES_LISTED = 60
"""Rows of the table; those under way and failed ones come first."""
EVENTS_LISTED = 40
CALLBACKS_LISTED = 5
NEEDS_LISTED = 6
SUB_RUNS_LISTED = 20
LARGE = ("inputs", "output", "kept_maps", "node_states", "error_message", "version__spec")
"""Fields of a run that its row in a list does not need."""
_FIRST = {NodeState.FAILED: 0, NodeState.RUNNING: 1}


@dataclass(frozen=True, slots=True)
class NodeRow:
    """A node in the table. left, width: of its bar, in percent of the run's time; width 0: no bar. seconds:
    it has taken so long. gpu_seconds: None: none known."""

    node: GraphNode
    left: float
    width: float
    seconds: float | None
    gpu_seconds: float | None
    needs: list[str]
    more_needs: int
    done: int = 0

    @property
    def state(self) -> str:
        return self.node.state.value


@dataclass(frozen=True, slots=True)
class RunView:
    """What the live part shows. left_out: nodes that the table does not list. on_failure: key of the node
    that a restart can't name; empty: there is none."""

    run: Run
    graph: Graph
    rows: list[NodeRow]
    left_out: int
    reasons: list[RunReason]
    ends: Forecast | None
    cost: Cost
    is_over: bool
    seconds: float
    on_failure: str


def view_of(run: Run, now: datetime) -> RunView:
    """Read the live part of a run's page."""
    real, plan = ports.production_ports(), plan_of(run)
    graph, cost = graph_of(run, plan), cost_of(run)
    over = run.state != RunState.RUNNING
    rows = _rows(run, graph, cost, now)
    reasons = [] if over else explain_run(run, plan, graph, real)
    total = ((run.finished_at or now) - run.created_at).total_seconds()
    ends = forecast(run, plan, graph, real, reasons=reasons)
    left_out, last = len(graph.nodes) - len(rows), plan.on_failure.key if plan.on_failure else ""
    return RunView(run, graph, rows, left_out, reasons, ends, cost, over, total, last)


def _rows(run: Run, graph: Graph, cost: Cost, now: datetime) -> list[NodeRow]:
    """Return the rows of the table: of a large graph those that failed or run, then the first others."""
    chosen: Sequence[GraphNode] = graph.nodes
    if len(chosen) > NODES_LISTED:
        places = {node.key: place for place, node in enumerate(graph.nodes)}
        ranked = sorted(graph.nodes, key=lambda node: (_FIRST.get(node.state, 2), places[node.key]))
        chosen = sorted(ranked[:NODES_LISTED], key=lambda node: places[node.key])
    begin, end = run.created_at, run.finished_at or now
    return [_row(node, cost, begin, end) for node in chosen]


def _row(node: GraphNode, cost: Cost, begin: datetime, end: datetime) -> NodeRow:
    total = max((end - begin).total_seconds(), 0.001)
    needs = sorted(node.spec.needs)
    left = width = 0.0
    took = None
    if node.began is not None:
        started = max((node.began - begin).total_seconds(), 0.0)
        took = max(((node.ended or end) - node.began).total_seconds(), 0.0)
        left = min(100 * started / total, 99.0)
        width = max(min(100 * took / total, 100 - left), 0.5)
    done = 0
    if node.counts is not None and node.counts.total:
        done = round(100 * (node.counts.completed + node.counts.failed) / node.counts.total)
    gpu = cost.by_node.get(node.key)
    return NodeRow(
        node, left, width, took, gpu, needs[:NEEDS_LISTED], max(len(needs) - NEEDS_LISTED, 0), done
    )


def events_of(run: Run, *, with_details: bool) -> list[tuple[RunEvent, Shown | None]]:
    """Return the run's latest events, newest first, with their data."""
    rows = RunEvent.objects.filter(run=run).order_by("-seq")[:EVENTS_LISTED]
    return [
        (row, show_json(data) if (data := shown_run_event(row.data, in_full=with_details)) else None)
        for row in rows
    ]


def callbacks(run: Run) -> list[Callback]:
    """Return the run's callbacks, latest round first, each with `tries_made`."""
    log = Prefetch("log", queryset=CallbackTry.objects.order_by("-number"), to_attr="tries_made")
    return list(callbacks_of(run).defer("body").order_by("-round").prefetch_related(log)[:CALLBACKS_LISTED])


@dataclass(frozen=True, slots=True)
class Value:
    """Inputs or output. erased: of `erased_mark`."""

    title: str
    json: Shown
    erased: Mapping[str, str] | None


def _value(title: str, value: Any) -> Value:
    return Value(title, show_json(value), erased_mark(value))


def sub_runs(run: Run, graph: Graph) -> tuple[list[Run], bool]:
    """Return the newest sub-runs of a run, at most `SUB_RUNS_LISTED`, and whether there are more."""
    if not any(node.spec.kind is NodeKind.WORKFLOW for node in graph.nodes):
        return [], False
    rows = Run.objects.filter(parent_node__run=run).select_related("version__workflow", "parent_node")
    rows = rows.defer(*LARGE, "parent_node__settings", "parent_node__output")
    found = list(rows[: SUB_RUNS_LISTED + 1])
    return found[:SUB_RUNS_LISTED], len(found) > SUB_RUNS_LISTED


class RunDetail(WaitForms, RestartPage):
    """Mixin of the runs' admin: the run's page."""

    row_template = "admin_ui/run/page.html"

    def get_urls(self) -> list[URLPattern]:
        return [*self.routes(("<str:run_id>/live/", self.live, "workflows_run_live")), *super().get_urls()]

    def find_row(self, row_id: str, *deferred: str) -> Run | None:
        rows = Run.objects.select_related("tenant", "version__workflow").defer(*deferred)
        return rows.filter(id=row_id).first()

    def live(self, request: HttpRequest, run_id: str) -> HttpResponse:
        """The live part as a fragment. 204 if there is nothing new since `?mark=`."""
        self.require_view(request)
        if (mark := request.GET.get("mark")) is not None:  # without the definition and the data of the run
            marked = Run.objects.only(*MARK_FIELDS).filter(id=run_id).first()
            if marked is not None and mark == mark_of(marked, timezone.now()):
                return HttpResponse(status=204)
        run = self.row_or_404(run_id)
        context = {**self.page_context(request, run), "swapped": True}
        # a form that a person fills in stays while its question does
        context["swaps_waits"] = request.GET.get("waits") != context["waits_mark"]
        return TemplateResponse(request, "admin_ui/run/live_and_detail.html", context)

    def page_context(self, request: HttpRequest, run: Run) -> dict[str, Any]:
        allowed = self.get_actions_detail(request, run.id)
        may_see = sees_payloads(request)
        values = [_value("Output", output)] if (output := shown_output(run)) is not None else []
        values += [_value("Inputs", run.inputs)]
        parent = None
        if run.parent_node_id is not None:
            parent = Node.objects.only("run_id", "key").filter(id=run.parent_node_id).first()
        is_open = run.state == RunState.RUNNING
        questions = questions_of(run, host=request.get_host()) if is_open and may_see else []
        signals = signals_of(run) if is_open and self.has_operate_permission(request) else []
        waiting = [one.node_id for one in questions] + [one.node_id for one in signals]
        now = timezone.now()
        view = view_of(run, now)
        newest_sub_runs, has_more_sub_runs = sub_runs(run, view.graph)
        return {
            "run": run,
            "mark": mark_of(run, now),
            "view": view,
            "sub_runs": newest_sub_runs,
            "has_more_sub_runs": has_more_sub_runs,
            "may_choose": self.may_choose_nodes(request, run.id),
            "buttons": self._get_actions_navigation(self.actions_detail, allowed, run.id),
            "questions": questions,
            "signals": signals,
            "waits_mark": ",".join(node_id[-8:] for node_id in waiting),
            "may_answer": self.may_answer(request),
            "values": values if may_see else [],
            "payloads_hidden": not may_see,
            "events": events_of(run, with_details=True),
            "callbacks": callbacks(run) if run.callback_url else [],
            "parent": parent,
        }


MARK_FIELDS = ("state", "steps", "event_seq", "round", "paused_at", "cancel_requested_at")
"""Columns that `mark_of` reads."""


def mark_of(run: Run, now: datetime) -> str:
    """Return what changes when the page has news: the run's steps, events and flags; while it runs also every
    ten seconds, for its times and reasons."""
    tens = int(now.timestamp() // 10) if run.state == RunState.RUNNING else 0
    flags = (run.paused_at is not None, run.cancel_requested_at is not None)
    return f"{run.steps}-{run.event_seq}-{run.round}-{int(flags[0])}{int(flags[1])}-{tens}"
