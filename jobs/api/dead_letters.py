"""/admin/dlq: failed jobs that an operator may retry or dismiss."""

from __future__ import annotations

from dataclasses import asdict

from drf_spectacular.utils import OpenApiParameter
from rest_framework.request import Request
from rest_framework.response import Response

from gpus.api.openapi import described
from gpus.api.permissions import IsOperator
from jobs.api.base import JobView, require_visible, visible_job
from jobs.api.pages import PARAMETERS, JobPages
from jobs.api.parameters import JOB_ID, TEXT, allow_only, text_parameter
from jobs.api.representations import job_json, summary_json
from jobs.queries import dead_letters
from jobs.services.operate import dismiss_dead_letter, retry_dead_letter, retry_dead_letters

_FILTERS = (
    OpenApiParameter("model", TEXT),
    OpenApiParameter("error_code", TEXT),
)


class OperatorView(JobView):
    permission_classes = (IsOperator,)


class DeadLetters(OperatorView):
    @described(
        "list_dead_letters",
        "Failed jobs, newest first",
        answers={200: "JobPage"},
        refusals=(400, 403),
        parameters=(*_FILTERS, *PARAMETERS),
        tag="admin",
    )
    def get(self, request: Request) -> Response:
        allow_only(request, ("model", "error_code", "cursor", "limit"))
        rows = dead_letters(
            model=text_parameter(request, "model"), error_code=text_parameter(request, "error_code")
        )
        pages = JobPages()
        page = pages.paginate_queryset(rows, request, view=self) or []
        return pages.get_paginated_response([summary_json(job) for job in page])


class RetryDeadLetters(OperatorView):
    @described(
        "retry_dead_letters",
        "Retry failed jobs, all or those that match, up to a thousand per call",
        answers={200: "Retried"},
        refusals=(400, 403),
        parameters=_FILTERS,
        tag="admin",
    )
    def post(self, request: Request) -> Response:
        allow_only(request, ("model", "error_code"))
        rows = dead_letters(
            model=text_parameter(request, "model"), error_code=text_parameter(request, "error_code")
        )
        return Response(asdict(retry_dead_letters(rows, ports=self.ports)))


class RetryDeadLetter(OperatorView):
    @described(
        "retry_dead_letter",
        "Retry a failed job: a new round with its own budget",
        answers={200: "Job"},
        refusals=(403, 404, 409),
        parameters=(JOB_ID,),
        tag="admin",
    )
    def post(self, request: Request, job_id: str) -> Response:
        job_id = require_visible(request, job_id)
        retry_dead_letter(job_id, ports=self.ports)
        return Response(job_json(visible_job(request, job_id)))


class DeadLetter(OperatorView):
    @described(
        "get_dead_letter",
        "A failed job with its attempts",
        answers={200: "Job"},
        refusals=(403, 404),
        parameters=(JOB_ID,),
        tag="admin",
    )
    def get(self, request: Request, job_id: str) -> Response:
        return Response(job_json(visible_job(request, job_id)))

    @described(
        "dismiss_dead_letter",
        "Take a failed job off the list",
        answers={204: None},
        refusals=(403, 404, 409),
        parameters=(JOB_ID,),
        tag="admin",
    )
    def delete(self, request: Request, job_id: str) -> Response:
        dismiss_dead_letter(require_visible(request, job_id), ports=self.ports)
        return Response(status=204)
