"""Runs on the terminal: finding one, its document, its lines, and its end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from django.conf import settings
from django.core.management.base import CommandError
from django.db.models import F

from dispatcher_project.cli.screen import age, field_text, line, plain, table
from gpus.registry.audit import cli_actor
from jobs.domain.access import Principal
from workflows.api.base import runs_visible_to
from workflows.api.nodes import nodes_json
from workflows.api.representations import run_json, summary_json
from workflows.domain.states import RunState
from workflows.models import Node, Run, RunEvent
from workflows.reports.forecast import PAUSED
from workflows.reports.graph import MapCounts, map_counts

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

COMPLETED, FAILED, NOT_ENDED = 0, 1, 3
"""Exit statuses of commands that wait for a run."""
STATE_COLOURS = {
    "running": "green", "completed": "green", "failed": "red", "cancelled": "dim", "skipped": "dim",
    "pending": "dim",
}  # fmt: skip
MAX_NODES, MAX_REASONS = 200, 5


def operator() -> Principal:
    """Return the reader of a command: it sees all tenants and all payloads."""
    return Principal(tenant_id=None, is_operator=True, name=cli_actor())


def find_run(run_id: str) -> Run:
    """Return a run. Raises CommandError."""
    wanted = run_id.strip().upper()
    found = runs_visible_to(operator()).select_related("tenant").filter(id=wanted).first()
    if found is None:
        raise CommandError(f"there is no run {plain(run_id, 80)}: it was never started, or was removed")
    return found


def run_document(run: Run) -> dict[str, Any]:
    return run_json(run, operator())


def end_status(run: Run) -> int:
    """Return the exit status for a run that was waited for."""
    if run.state == RunState.RUNNING:
        return NOT_ENDED
    return COMPLETED if run.state == RunState.COMPLETED else FAILED


def run_table(runs: Sequence[Run], now: datetime) -> Table:
    heads = ("run", "workflow", "tenant", "status", "nodes", "age", "took", "sub-run of")
    return table(heads, [_row(run, now) for run in runs], gives_way=("nodes", "sub-run of"))


def _row(run: Run, now: datetime) -> tuple[str | Text, ...]:
    status = "paused" if run.is_paused else str(run.state)
    error = f": {run.error_node} {run.error_code}" if run.error_code else ""
    return (
        run.id,
        f"{run.version.workflow.name} v{run.version.number}",
        run.tenant.name,
        line((f"{status}{error}", STATE_COLOURS.get(run.state, ""))),
        _counts(run),
        age((now - run.created_at).total_seconds()),
        age((run.finished_at - run.created_at).total_seconds()) if run.finished_at else "–",
        f"{run.parent_node.run_id} {run.parent_node.key}" if run.parent_node else "",
    )


def _counts(run: Run) -> str:
    return ", ".join(f"{count} {state}" for state, count in sorted(Counter(run.node_states.values()).items()))


def run_lines(run: Run, now: datetime) -> list[Text]:
    """Return the head of a run: what it is, how far it is, and what it waits for."""
    document = run_json(run, operator())
    until = run.finished_at or now
    lines = [
        line(
            (run.id, "bold"),
            "  ",
            (str(run.state), f"bold {STATE_COLOURS.get(run.state, '')}"),
            "  paused" if run.is_paused else "",
            f"  {run.version.workflow.name} v{run.version.number}  of {run.tenant.name}  round {run.round}",
            wraps=True,
        ),
        line(
            f"started {run.created_at:%Y-%m-%d %H:%M:%S} UTC, {age((until - run.created_at).total_seconds())}"
            f"; {_counts(run)}",
            wraps=True,
        ),
    ]
    if (parent := document["parent"]) is not None:
        lines.append(line(f"sub-run of {parent['run_id']} {parent['node']}", wraps=True))
    if run.erase_requested_at is not None:
        lines.append(line("its data is erased", wraps=True))
    if run.error_code:
        is_named = not run.error_node or run.error_message.startswith(f"{run.error_node} ")
        at = "" if is_named else f"{run.error_node}: "
        text = f": {plain(run.error_message)}" if run.error_message else ""  # an erased run has none
        lines.append(line((f"{at}{run.error_code}{text}", "red"), wraps=True))
    if document["waiting_for"]:
        lines.append(line(("waits for ", ""), (", ".join(document["waiting_for"]), "yellow"), wraps=True))
    return lines


def why_lines(run: Run, why: dict[str, Any]) -> list[Text]:
    """Return why a run waits, when it will end, its GPU time and its page. why: as `explanation_json`."""
    lines = []
    if run.state == RunState.RUNNING:
        for reason in why["reasons"][:MAX_REASONS]:
            at = (f"{reason['node']}: ", "bold") if reason["node"] else ""
            message = plain(reason["message"], 300) + _place(reason)
            lines.append(line(at, (reason["code"], "yellow"), f": {message}", wraps=True))
    if (ends := why["ends_in"]) is not None:
        lines.append(line(f"ends in {_end(ends)}", wraps=True))
    page = run_json(run, operator())["urls"]["page"]
    shown = f"  page {settings.DISPATCHER.public_url}{page}" if page else ""
    lines.append(line(f"cost {why['cost']['gpu_seconds']:.1f} GPU-seconds{shown}", wraps=True))
    return lines


def _place(reason: dict[str, Any]) -> str:
    """Return where the job of a reason is in its queue, when it starts, and when the wait ends."""
    parts = []
    if reason["position"] is not None:
        parts.append(f"position {reason['position']}")
    if reason["starts_in"] is not None:
        parts.append(f"starts in about {age(reason['starts_in']['p50_seconds'])}")
    if reason["until"] is not None:
        parts.append(f"until {reason['until']:%Y-%m-%d %H:%M:%S} UTC")
    return f" ({', '.join(parts)})" if parts else ""


def _end(ends: dict[str, Any]) -> str:
    """Return when a run ends, in words. ends: as in `explanation_json`."""
    if ends["held"] is not None:
        return f"unknown: the run is {'paused' if ends['held'] == PAUSED else 'being cancelled'}"
    unknown = f"no time is known yet of {', '.join(ends['unknown'][:10])}" if ends["unknown"] else ""
    if ends["seconds"] is None:
        return f"unknown{f': {unknown}' if unknown else ''}"
    text = f"{'at least ' if unknown else 'about '}{age(ends['seconds'])}"
    if ends["answers"]:
        latest = ends["unanswered_seconds"]
        text += ", if answers come at once" + ("" if latest is None else f" (without any: {age(latest)})")
    if ends["misses_deadline"]:
        text += ", after its deadline"
    return text + (f"; {unknown}" if unknown else "")


def newest_nodes(run: Run, *, with_children: bool) -> list[Node]:
    """Return the newest row of each node that has started, in the order of the starts, at most `MAX_NODES`.
    Children of maps only on request."""
    rows = Node.objects.filter(run=run).annotate(child_run_id=F("child_runs__id")).order_by("-id")
    if not with_children:
        rows = rows.filter(index=None)
    found: dict[str, Node] = {}
    for node in rows[:MAX_NODES]:
        found.setdefault(node.key, node)
    return list(found.values())[::-1]


def node_table(run: Run, nodes: Sequence[Node], now: datetime) -> Table:
    """Return started nodes with their state and job, and those that never started."""
    counts = map_counts({node.key: node for node in nodes if node.index is None})
    rows: list[tuple[str | Text, ...]] = [
        (
            node.key,
            node.kind,
            line((str(node.state), STATE_COLOURS.get(node.state, ""))),
            _items(counts.get(node.key)),
            age(((node.finished_at or now) - node.started_at).total_seconds()) if node.started_at else "–",
            node.job_id or "",
            plain(f"{node.code} {node.detail}", 120) if node.code else "",
        )
        for node in nodes
    ]
    started = {node.base for node in nodes}
    rows += [
        (key, "", line((str(state), STATE_COLOURS.get(state, ""))), "", "–", "", "")
        for key, state in run.node_states.items()
        if key not in started
    ]
    heads = ("node", "kind", "state", "items", "took", "job", "error")
    return table(heads, rows, gives_way=("error",))


def _items(counts: MapCounts | None) -> str:
    """``3 of 8, 1 failed`` of a map; empty of another node."""
    if counts is None:
        return ""
    failed = f", {counts.failed} failed" if counts.failed else ""
    return f"{counts.completed + counts.failed} of {counts.total}{failed}"


def node_documents(nodes: Sequence[Node]) -> list[dict[str, Any]]:
    return nodes_json(list(nodes), operator())


def run_summaries(runs: Sequence[Run]) -> list[dict[str, Any]]:
    return [summary_json(run) for run in runs]


def new_events(run: Run, after: int) -> list[RunEvent]:
    return list(RunEvent.objects.filter(run=run, seq__gt=after).order_by("seq")[:MAX_NODES])


_FIRST = ("node", "state", "status")
"""Fields of an event that come before the others."""


def event_line(event: RunEvent) -> Text:
    order = sorted(event.data.items(), key=lambda item: (item[0] not in _FIRST, item[0]))
    data = " ".join(f"{key}={field_text(value, 80)}" for key, value in order)
    return line((f"{event.at:%H:%M:%S}", "dim"), f"  {event.type:<12} {data}".rstrip())
