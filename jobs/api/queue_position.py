"""Where a waiting job stands in line, changed by an operator."""

from __future__ import annotations

from rest_framework.request import Request
from rest_framework.response import Response

from foundation.http_api.json_body import read_body
from foundation.http_api.openapi import described
from gpus.api.base import actor
from jobs.api import answers, bodies
from jobs.api.base import require_visible, shown_job, visible_job
from jobs.api.dead_letters import OperatorView
from jobs.api.parameters import JOB_ID
from jobs.operations.queue_position import change_priority, run_next


class ChangePriority(OperatorView):
    @described(
        "change_priority",
        "Change the priority of a waiting job",
        answers={200: answers.Job},
        refusals=(403, 404, 409),
        body=bodies.PriorityBody,
        parameters=(JOB_ID,),
        tag="admin",
        description="It keeps its place among jobs of the new priority. 409: it runs, or is over.",
    )
    def post(self, request: Request, job_id: str) -> Response:
        job_id = require_visible(request, job_id)
        wanted = read_body(bodies.PriorityBody, request.data).priority
        change_priority(job_id, wanted, by=actor(request), ports=self.ports)
        return Response(shown_job(request, visible_job(request, job_id)))


class RunNext(OperatorView):
    @described(
        "run_next",
        "Run a waiting job next",
        answers={200: answers.Job},
        refusals=(403, 404, 409),
        parameters=(JOB_ID,),
        tag="admin",
        description="Priority 1, and a place before all others: before every job of its tenant, and, where "
        "tenants take turns, at its tenant's next turn among urgent jobs. 409: it runs, or is over.",
    )
    def post(self, request: Request, job_id: str) -> Response:
        job_id = require_visible(request, job_id)
        run_next(job_id, by=actor(request), ports=self.ports)
        return Response(shown_job(request, visible_job(request, job_id)))
