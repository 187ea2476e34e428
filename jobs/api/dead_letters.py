"""/admin/dlq: failed jobs that an operator may retry or dismiss."""

from __future__ import annotations

from drf_spectacular.utils import OpenApiParameter
from rest_framework.request import Request
from rest_framework.response import Response

from gpus.api.base import actor
from gpus.api.openapi import described
from gpus.api.permissions import IsOperator
from jobs.api.base import JobView, require_visible, shown_job, visible_job
from jobs.api.bulk_schemas import FINGERPRINT
from jobs.api.pages import PARAMETERS, JobPages
from jobs.api.parameters import (
    JOB_ID,
    TEXT,
    allow_only,
    fingerprint_parameter,
    flag_parameter,
    text_parameter,
)
from jobs.api.representations import summary_json
from jobs.failures import GROUPS, dead_letter_groups
from jobs.job_filter import JobFilter
from jobs.queries import dead_letters
from jobs.services.bulk import Deed, count, retry_jobs
from jobs.services.operate import dismiss_dead_letter, retry_dead_letter

_FILTERS = (
    OpenApiParameter("model", TEXT),
    OpenApiParameter("tenant", TEXT, description="Its name."),
    OpenApiParameter("error_code", TEXT),
    OpenApiParameter("fingerprint", FINGERPRINT, description="Of a group: one kind of failure."),
)
_NAMES = tuple(parameter.name for parameter in _FILTERS)


class OperatorView(JobView):
    permission_classes = (IsOperator,)
    needs = {"GET": "jobs.view_job", "POST": "jobs.change_job", "DELETE": "jobs.change_job"}


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
        rows = dead_letters(_filter(request, "cursor", "limit"))
        pages = JobPages()
        page = pages.paginate_queryset(rows, request, view=self) or []
        return pages.get_paginated_response([summary_json(job) for job in page])


class DeadLetterGroups(OperatorView):
    @described(
        "list_dead_letter_groups",
        "Failed jobs by kind of failure, the largest groups first",
        answers={200: "DeadLetterGroups"},
        refusals=(400, 403),
        parameters=_FILTERS,
        tag="admin",
        description="The kind is the error code and the message without numbers, ids, paths and quoted text. "
        f"The first {GROUPS} groups.",
    )
    def get(self, request: Request) -> Response:
        return Response({"results": [group.as_json() for group in dead_letter_groups(_filter(request))]})


class RetryDeadLetters(OperatorView):
    @described(
        "retry_dead_letters",
        "Retry failed jobs, all or those that match, up to a thousand per call",
        answers={200: "Retried"},
        refusals=(400, 403),
        parameters=(*_FILTERS, OpenApiParameter("dry_run", {"enum": ["true", "false"]})),
        tag="admin",
        description="With `dry_run=true` nothing is retried, and `remaining` says how many match.",
    )
    def post(self, request: Request) -> Response:
        chosen = _filter(request, "dry_run")
        if flag_parameter(request, "dry_run"):
            return Response({"retried": 0, "remaining": count(chosen, Deed.RETRY), "dry_run": True})
        done = retry_jobs(chosen, by=actor(request), ports=self.ports)
        return Response({"retried": done.done, "remaining": done.remaining, "dry_run": False})


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
        retry_dead_letter(job_id, ports=self.ports, by=actor(request))
        return Response(shown_job(request, visible_job(request, job_id)))


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
        return Response(shown_job(request, visible_job(request, job_id)))

    @described(
        "dismiss_dead_letter",
        "Take a failed job off the list",
        answers={204: None},
        refusals=(403, 404, 409),
        parameters=(JOB_ID,),
        tag="admin",
    )
    def delete(self, request: Request, job_id: str) -> Response:
        dismiss_dead_letter(require_visible(request, job_id), ports=self.ports, by=actor(request))
        return Response(status=204)


def _filter(request: Request, *others: str) -> JobFilter:
    """others: parameters that the route takes besides."""
    allow_only(request, (*_NAMES, *others))
    return JobFilter(
        model=text_parameter(request, "model"),
        tenant=text_parameter(request, "tenant"),
        error_code=text_parameter(request, "error_code"),
        fingerprint=fingerprint_parameter(request),
    )
