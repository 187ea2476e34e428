"""/admin/workers: which processes live, and what they drive."""

from __future__ import annotations

from rest_framework.request import Request
from rest_framework.response import Response

from foundation.http_api.openapi import described
from jobs.api import answers
from jobs.api.dead_letters import OperatorView
from jobs.api.parameters import allow_only
from jobs.reports.workers import WorkerRow, workers


class Workers(OperatorView):
    needs = {"GET": "gpus.view_server"}

    @described(
        "list_workers",
        "Processes of the dispatcher: which live, what they drive, when they last said so",
        answers={200: answers.Workers},
        refusals=(400, 403),
        tag="admin",
        description="GPU workers, workers for sweeps and callbacks, and web processes, also those that fell "
        "silent within the last day; one that ended in order is not there. Beat and processes of versions "
        "before 0.2 say nothing of themselves.",
    )
    def get(self, request: Request) -> Response:
        allow_only(request, ())
        return Response({"results": [worker_json(row) for row in workers()]})


def worker_json(row: WorkerRow) -> answers.Worker:
    return {
        "name": row.name,
        "kind": row.kind,
        "live": row.is_live,
        "last_beat_at": row.beat_at,
        "last_beat_seconds": round(row.beat_seconds, 1),
        "started_at": row.started_at,
        "layout": row.layout,
        "queues": list(row.queues),
        "running": row.running,
        "servers": list(row.servers),
    }
