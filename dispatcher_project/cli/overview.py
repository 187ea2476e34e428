"""What `top` shows, as one JSON document: the snapshots of the dashboard, and the last failures.

Its cost does not grow with the number of jobs: no count goes over what is finished.
"""

from __future__ import annotations

from typing import Any

from gpus.reports import Cell, ServerRow
from jobs.api.representations import pause_json
from jobs.models import DEAD_LETTER, Callback, Job
from jobs.ports import Ports
from jobs.reports.fleet import FleetSnapshot, IndexReport, fleet_snapshot, index_report
from jobs.reports.history import WINDOWS, history
from jobs.reports.jobs import named
from jobs.reports.queue_report import ModelQueue, QueueSnapshot, queue_snapshot
from jobs.sweeps.base import TICK, sweep_ages

LAST_FAILURES = 8
MOST_COUNTED = 10_000
"""More dead letters, or pending callbacks, are not counted out."""


def overview(ports: Ports) -> dict[str, Any]:
    """Raises DatabaseError; what Redis does not say is unknown or None."""
    now = ports.clock.now()
    fleet = fleet_snapshot(ports.leases, now)
    queues = queue_snapshot(ports.leases, now, history(WINDOWS["1h"], now), with_shares=False)
    letters = Job.objects.filter(DEAD_LETTER).order_by()
    pending = Callback.objects.filter(state=Callback.State.PENDING).order_by()
    return {
        "at": now,
        "away": sorted({*fleet.away, *queues.away}),
        "last_tick_seconds": sweep_ages(now).get(TICK),
        "clocks_off": dict(ports.clocks.report().off),
        "pauses": _pauses(queues),
        "layouts": _layouts(index_report()),
        "servers": fleet.total,
        "fleet": _fleet(fleet),
        "queues": [_queue(line) for line in queues.lines],
        "failures": _failures(),
        "dead_letters": letters[:MOST_COUNTED].count(),
        "callbacks_pending": pending[:MOST_COUNTED].count(),
    }


def _layouts(report: IndexReport) -> list[dict[str, Any]]:
    """Of fleets where not all processes know the layout of the index; most of the time none."""
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
    rows = Job.objects.filter(DEAD_LETTER).order_by("-finished_at")
    fields = ("finished_at", "id", "model", "error_code", "error_message")
    return [
        {"at": at, "job_id": job_id, "model": model, "error_code": code, "error_message": message}
        for at, job_id, model, code, message in rows.values_list(*fields)[:LAST_FAILURES]
    ]


def _pauses(queues: QueueSnapshot) -> list[dict[str, Any]]:
    found = [queues.system_pause, *(line.pause for line in queues.lines), *queues.tenant_pauses]
    return [pause_json(pause, name) for pause, name in named([one for one in found if one is not None])]
