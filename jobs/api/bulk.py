"""What operators do to all jobs that match a filter."""

from __future__ import annotations

from dataclasses import asdict

from rest_framework.request import Request
from rest_framework.response import Response

from foundation.http_api.json_body import read_body
from foundation.http_api.openapi import described
from gpus.api.base import actor
from jobs.api import answers, bodies
from jobs.api.dead_letters import OperatorView
from jobs.api.parameters import body_filter
from jobs.operations.bulk import BulkAction, BulkOutcome, cancel_jobs, count, dismiss_jobs, retry_jobs

_SERVICES = {BulkAction.CANCEL: cancel_jobs, BulkAction.RETRY: retry_jobs, BulkAction.DISMISS: dismiss_jobs}
_REFUSALS = (403,)
_AGAIN = "Up to a thousand per call: ask again while something remains."


class BulkView(OperatorView):
    def carry_out(self, request: Request, deed: BulkAction) -> Response:
        asked = read_body(bodies.BulkBody, request.data)
        chosen, dry_run = body_filter(asked.filter.given(), "/filter"), asked.dry_run
        if dry_run:
            done = BulkOutcome(0, count(chosen, deed), 0)
        else:
            done = _SERVICES[deed](chosen, by=actor(request), ports=self.ports)
        return Response({**asdict(done), "dry_run": dry_run})


class CancelJobs(BulkView):
    @described(
        "cancel_jobs",
        "Cancel all jobs that match",
        answers={200: answers.BulkOutcome},
        refusals=_REFUSALS,
        body=bodies.BulkBody,
        tag="admin",
        description=f"Those that wait are cancelled, those that run are being stopped. {_AGAIN}",
    )
    def post(self, request: Request) -> Response:
        return self.carry_out(request, BulkAction.CANCEL)


class RetryJobs(BulkView):
    @described(
        "retry_jobs",
        "Retry all failed jobs that match",
        answers={200: answers.BulkOutcome},
        refusals=_REFUSALS,
        body=bodies.BulkBody,
        tag="admin",
        description=f"Dead letters only; those that failed longest ago first. {_AGAIN}",
    )
    def post(self, request: Request) -> Response:
        return self.carry_out(request, BulkAction.RETRY)


class DismissDeadLetters(BulkView):
    @described(
        "dismiss_dead_letters",
        "Take all failed jobs that match off the list",
        answers={200: answers.BulkOutcome},
        refusals=_REFUSALS,
        body=bodies.BulkBody,
        tag="admin",
        description=_AGAIN,
    )
    def post(self, request: Request) -> Response:
        return self.carry_out(request, BulkAction.DISMISS)
