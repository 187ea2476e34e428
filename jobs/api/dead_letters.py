"""/admin/dlq: failed jobs that an operator may retry or dismiss."""

from __future__ import annotations

from dataclasses import replace

from drf_spectacular.utils import OpenApiParameter
from rest_framework.request import Request
from rest_framework.response import Response

from foundation.http_api.openapi import described
from foundation.http_api.parameters import PARAMETERS
from foundation.http_api.problems import FieldError, validation_problem
from gpus.api.base import actor, read_optional_body
from gpus.api.permissions import IsOperator
from jobs.api import answers, bodies
from jobs.api.base import JobView, job_summaries, require_visible, shown_job, visible_job
from jobs.api.parameters import FILTERS, JOB_ID, JobPages, body_filter, flag_parameter, query_filter
from jobs.operations.bulk import BulkAction, count, retry_jobs
from jobs.operations.jobs import dismiss_dead_letter, retry_dead_letter
from jobs.reports.failures import GROUPS, dead_letter_groups
from jobs.reports.job_filter import JobFilter
from jobs.reports.jobs import dead_letters


class OperatorView(JobView):
    permission_classes = (IsOperator,)
    needs = {"GET": "jobs.view_job", "POST": "jobs.change_job", "DELETE": "jobs.change_job"}


class DeadLetters(OperatorView):
    @described(
        "list_dead_letters",
        "Failed jobs, newest first",
        answers={200: answers.JobPage},
        refusals=(400, 403),
        parameters=(*FILTERS, *PARAMETERS),
        tag="admin",
    )
    def get(self, request: Request) -> Response:
        rows = dead_letters(query_filter(request, "cursor", "limit"))
        pages = JobPages()
        page = pages.paginate_queryset(rows, request, view=self) or []
        return pages.get_paginated_response(job_summaries(request, page))


class DeadLetterGroups(OperatorView):
    @described(
        "list_dead_letter_groups",
        "Failed jobs by kind of failure, the largest groups first",
        answers={200: answers.DeadLetterGroups},
        refusals=(400, 403),
        parameters=FILTERS,
        tag="admin",
        description="The kind is the error code and the message without numbers, ids, paths and quoted text. "
        f"The first {GROUPS} groups.",
    )
    def get(self, request: Request) -> Response:
        return Response({"results": [group.as_json() for group in dead_letter_groups(query_filter(request))]})


class RetryDeadLetters(OperatorView):
    @described(
        "retry_dead_letters",
        "Retry failed jobs, all or those that match, up to a thousand per call",
        answers={200: answers.Retried},
        refusals=(400, 403),
        parameters=(*FILTERS, OpenApiParameter("dry_run", {"enum": ["true", "false"]})),
        body=bodies.RetryBody,
        body_required=False,
        tag="admin",
        description="Which ones say the parameters and the body together. With `dry_run` nothing is retried, "
        "and `remaining` says how many match.",
    )
    def post(self, request: Request) -> Response:
        chosen, dry_run = _asked_for(request)
        if dry_run:
            return Response({"retried": 0, "remaining": count(chosen, BulkAction.RETRY), "dry_run": True})
        done = retry_jobs(chosen, by=actor(request), ports=self.ports)
        return Response({"retried": done.done, "remaining": done.remaining, "dry_run": False})


class RetryDeadLetter(OperatorView):
    @described(
        "retry_dead_letter",
        "Retry a failed job: a new round with its own budget",
        answers={200: answers.Job},
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
        answers={200: answers.Job},
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


def _asked_for(request: Request) -> tuple[JobFilter, bool]:
    """The filter, from the query and the body together, and whether it is a dry run. Raises Problem."""
    in_query = query_filter(request, "dry_run")
    body = read_optional_body(bodies.RetryBody, request.data)
    given = body.given()
    if twice := sorted(set(given) & set(request.query_params)):
        raise validation_problem([FieldError(f"/{twice[0]}", "invalid", "It stands in the query already.")])
    named = {name: value for name, value in given.items() if name != "dry_run"}
    in_body = body_filter(named, "")
    dry_run = body.dry_run or flag_parameter(request, "dry_run")
    return replace(in_query, **{name: getattr(in_body, name) for name in named}), dry_run
