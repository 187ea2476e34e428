"""The content of `top`: the dashboard's snapshots and the latest failures, as a document (`overview`) and for
a terminal (`overview_screen`).

Its cost does not grow with the number of jobs: finished jobs are never counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from datetime import datetime
from itertools import compress
from typing import TYPE_CHECKING, Any

from dispatcher_project.cli.screen import age, line, plain, table
from foundation.texts import counted
from gpus.leasing.clock import ClockReport
from gpus.reports import Cell, ServerRow
from jobs.api.representations import pause_json
from jobs.models import ACTIONABLE, Callback, Job
from jobs.ports import Ports
from jobs.reports.fleet import FleetSnapshot, IndexReport, fleet_snapshot, index_report
from jobs.reports.history import WINDOWS, history
from jobs.reports.jobs import named
from jobs.reports.queue_report import ModelQueue, QueueSnapshot, queue_snapshot
from jobs.sweeps.base import TICK, sweep_ages

if TYPE_CHECKING:
    from rich.console import Group, RenderableType
    from rich.table import Table
    from rich.text import Text

LAST_FAILURES = 8
MAX_COUNTED = 10_000
"""Dead letters and pending callbacks are counted up to this."""
SILENT_SECONDS = 10.0
"""Age of beat's last tick from which it is shown in red."""
_CELLS = {
    "free": ("·", "green"),
    "busy": ("█", "green"),
    "resting": ("z", "yellow"),
    "draining": ("▼", "yellow"),
    "quarantined": ("!", "red"),
    "sick": ("x", "red"),
    "off": ("–", "dim"),
    "unknown": ("?", "yellow"),
}
_STATES = {"drained": "dim", "draining": "yellow", "stopping": "yellow", "off": "dim", "unknown": "yellow",
           "paused": "yellow"}  # fmt: skip

_ALWAYS = ("waiting", "running", "retrying")
_QUEUE_HEAD = (
    *("model", "waiting", "parked", "oldest", "drains in", "running", "retrying"),
    *("done 1h", "failed 1h", "wait p50", "wait p95", "run p50"),
)
_QUEUE_COLUMNS, _QUEUE_NARROW = (
    120,
    ("model", "waiting", "oldest", "drains in", "running", "done 1h", "failed 1h"),
)
"""The columns of a narrower terminal: numbers can't be cut."""


def overview(ports: Ports) -> dict[str, Any]:
    """The document. Values that Redis does not answer are "unknown" or None. Raises DatabaseError."""
    now = ports.clock.now()
    fleet = fleet_snapshot(ports.leases, now)
    queues = queue_snapshot(ports.leases, now, history(WINDOWS["1h"], now), with_shares=False)
    letters = Job.objects.filter(ACTIONABLE).order_by()
    pending = Callback.objects.filter(state=Callback.State.PENDING).order_by()
    return {
        "at": now,
        "away": sorted({*fleet.away, *queues.away}),
        "last_tick_seconds": sweep_ages(now).get(TICK),
        "clocks_off": dict(ports.clock_watch.report().off),
        "pauses": _pauses(queues),
        "layouts": _layouts(index_report()),
        "servers": fleet.total,
        "fleet": _fleet(fleet),
        "queues": [_queue(line) for line in queues.lines],
        "failures": _failures(),
        "dead_letters": letters[:MAX_COUNTED].count(),
        "callbacks_pending": pending[:MAX_COUNTED].count(),
    }


def _layouts(report: IndexReport) -> list[dict[str, Any]]:
    """Fleets some of whose processes have another layout than the index."""
    return [
        {
            "fleet": fleet,
            "layout": state.layout,
            "next_layout": state.next_layout,
            "others": [{"name": one.name, "kind": one.kind, "layout": one.layout} for one in others],
        }
        for fleet, state in report.states.items()
        if (others := report.others(state)) or state.next_layout is not None
    ]


def _fleet(fleet: FleetSnapshot) -> list[dict[str, Any]]:
    return [_server(row) for row in fleet.rows]


def _server(row: ServerRow) -> dict[str, Any]:
    return {
        "name": row.name,
        "pool": row.pool,
        "models": row.models,
        "desired": row.desired.value,
        "observed": row.observed,
        "healthy": row.healthy,
        "error": row.last_error,
        "slots": [_cell(cell) for cell in row.cells],
    }


def _cell(cell: Cell) -> dict[str, Any]:
    return {
        "slot": cell.slot,
        "state": cell.state.value,
        "reason": cell.reason,
        "job_id": cell.job_id,
        "model": cell.model or ", ".join(cell.warm_models) or None,
        "seconds": cell.age_seconds,
    }


def _queue(line: ModelQueue) -> dict[str, Any]:
    return {
        "model": line.model,
        "waiting": line.waiting,
        "parked": line.parked,
        "running": line.running,
        "retrying": line.retrying,
        "scheduled": line.scheduled,
        "cancelling": line.cancelling,
        "oldest_seconds": line.oldest_seconds,
        "drain_seconds": line.drain_seconds,
        "completed_1h": line.past.total.completed,
        "failed_1h": line.past.total.failed,
        "wait_p50_seconds": line.past.wait(0.5),
        "wait_p95_seconds": line.past.wait(0.95),
        "run_p50_seconds": line.past.run(0.5),
    }


def _failures() -> list[dict[str, Any]]:
    rows = Job.objects.filter(ACTIONABLE).order_by("-finished_at")
    fields = ("finished_at", "id", "model", "error_code", "error_message")
    return [
        {"at": at, "job_id": job_id, "model": model, "error_code": code, "error_message": message}
        for at, job_id, model, code, message in rows.values_list(*fields)[:LAST_FAILURES]
    ]


def _pauses(queues: QueueSnapshot) -> list[dict[str, Any]]:
    found = [queues.system_pause, *(line.pause for line in queues.lines), *queues.tenant_pauses]
    return [pause_json(pause, name) for pause, name in named([one for one in found if one is not None])]


def overview_screen(document: Mapping[str, Any], *, columns: int = 0, rows: int = 0) -> Group:
    """The document as text. columns, rows: of the terminal, 0 for no limit; the servers are cut first."""
    from rich.console import Group

    head, failures = _head(document), _failure_table(document)
    queues = _queues(document, is_narrow=0 < columns < _QUEUE_COLUMNS)
    used_lines = len(head) + 3 + len(document["queues"]) + (2 + len(document["failures"]) if failures else 0)
    fleet = _fleet_lines(document, max(rows - used_lines, 4) if rows else 0)
    parts: list[RenderableType] = [*head, "", *fleet, "", queues]
    return Group(*parts, *(("", failures) if failures else ()))


def _head(document: Mapping[str, Any]) -> list[Text]:
    at: datetime = document["at"]
    away = ", ".join(document["away"])
    tick = document["last_tick_seconds"]
    is_late = tick is None or tick > SILENT_SECONDS
    counts = "  ".join(
        f"{number} {name}"
        for name in ("waiting", "running", "retrying", "scheduled", "cancelling")
        if (number := _sum(document, name)) or name in _ALWAYS
    )
    letters, pending = document["dead_letters"], document["callbacks_pending"]
    lines = [
        line(
            ("GPU dispatcher", "bold"),
            f"  {at:%Y-%m-%d %H:%M:%S} UTC  ",
            (f"Redis does not answer for {plain(away, 40)}", "red") if away else ("Redis ok", "green"),
            "  ",
            ("beat never ticked" if tick is None else f"beat {age(tick)} ago", "red" if is_late else "green"),
        ),
        line(
            f"{counts}  ",
            (f"{_bounded(letters)} dead letter{'' if letters == 1 else 's'}", "red" if letters else ""),
            f"  {_bounded(pending)} callback{'' if pending == 1 else 's'} pending",
        ),
    ]
    if document["clocks_off"]:
        off = ClockReport(document["clocks_off"])
        lines.append(line((f"CLOCKS DISAGREE: {off}; deadlines and retention stand still", "red")))
    for index in document["layouts"]:
        change = f", being switched to {index['next_layout']}" if index["next_layout"] else ""
        text = f"index {index['fleet']}: layout {index['layout']}{change}"
        known = Counter(f"{one['kind']} of layout {one['layout']}" for one in index["others"])
        apart = ", ".join(f"{count} {name}" for name, count in sorted(known.items()))
        lines.append(line((f"UPGRADE {text}" + (f"; on other layouts: {apart}" if apart else ""), "yellow")))
    for pause in document["pauses"]:
        what = f"{pause['kind']} {pause['name']}".strip()
        why = f": {plain(pause['reason'])}" if pause["reason"] else ""
        by = f"since {pause['since']:%H:%M} by {plain(pause['by'])}"
        lines.append(line((f"PAUSED {what} {by}{why}", "yellow")))
    return lines


def _sum(document: Mapping[str, Any], name: str) -> int:
    return sum(queue[name] or 0 for queue in document["queues"])


def _bounded(count: int) -> str:
    return f"{count} or more" if count >= MAX_COUNTED else str(count)


def _fleet_lines(document: Mapping[str, Any], height: int) -> list[RenderableType]:
    """The servers. height: in lines, 0 for all."""
    servers, left = document["fleet"], document["servers"] - len(document["fleet"])
    if not servers:
        return [line(("no server is registered", "dim"))]
    if height and len(servers) + 2 + (left > 0) > height:
        servers = servers[: max(height - 3, 1)]
        left = document["servers"] - len(servers)
    rows = [
        (
            server["name"],
            server["pool"],
            line((server["desired"], "" if server["desired"] == "on" else "yellow")),
            _observed(server),
            line(*(_CELLS[slot["state"]] for slot in server["slots"])),
            _activity(server),
        )
        for server in servers
    ]
    used = Counter(slot["state"] for server in document["fleet"] for slot in server["slots"])
    legend = [
        part for state in _CELLS if used[state] for part in (_CELLS[state], f" {state} {used[state]}  ")
    ]
    return [
        table(("server", "pool", "set to", "is", "slots", ""), rows),
        *([f"… {counted(left, 'more server')}"] if left > 0 else []),
        *([line(*legend)] if legend else []),
    ]


def _observed(server: Mapping[str, Any]) -> Text:
    if server["healthy"] is False:
        return line(("sick", "red"))
    return line((server["observed"], _STATES.get(server["observed"], "")))


def _activity(server: Mapping[str, Any]) -> str:
    """The error of a sick server, else its running models, the longest run first."""
    if server["healthy"] is False:
        return str(server["error"])
    models: dict[str, list[float]] = {}
    for slot in server["slots"]:
        if slot["state"] in ("busy", "draining") and slot["seconds"] is not None:
            models.setdefault(slot["model"] or "?", []).append(slot["seconds"])
    busy = sorted(models.items(), key=lambda item: -max(item[1]))
    parts = [f"{model} {len(held)}× up to {age(max(held))}" for model, held in busy]
    held_back = [slot for slot in server["slots"] if slot["state"] == "quarantined"]
    if held_back:
        parts.append(f"quarantined: {held_back[0]['reason']}")
    return ", ".join(parts)


def _queues(document: Mapping[str, Any], *, is_narrow: bool) -> RenderableType:
    rows = [
        (
            queue["model"],
            "?" if queue["waiting"] is None else str(queue["waiting"]),
            str(queue["parked"]),
            age(queue["oldest_seconds"]),
            age(queue["drain_seconds"]),
            str(queue["running"]),
            str(queue["retrying"]),
            str(queue["completed_1h"]),
            line((str(queue["failed_1h"]), "red" if queue["failed_1h"] else "")),
            age(queue["wait_p50_seconds"]),
            age(queue["wait_p95_seconds"]),
            age(queue["run_p50_seconds"]),
        )
        for queue in document["queues"]
    ]
    if not rows:
        return line(("no model is registered", "dim"))
    shown = [name in _QUEUE_NARROW or not is_narrow for name in _QUEUE_HEAD]
    return table(
        list(compress(_QUEUE_HEAD, shown)),
        [list(compress(row, shown)) for row in rows],
        right=_QUEUE_HEAD[1:],
        gives_way=("drains in", "done 1h"),
    )


def _failure_table(document: Mapping[str, Any]) -> Table | None:
    rows = [
        (
            f"{one['at']:%H:%M:%S}",
            one["job_id"],
            one["model"],
            line((one["error_code"], "red")),
            one["error_message"],
        )
        for one in document["failures"]
    ]
    return table(("failed", "job", "model", "error", ""), rows) if rows else None
