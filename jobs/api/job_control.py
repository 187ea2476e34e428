"""Views for operators: retry or dismiss dead letters, bulk operations on jobs that match a filter, and the
place of a waiting job in the queue."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from drf_spectacular.utils import OpenApiParameter
from rest_framework.request import Request
from rest_framework.response import Response

from foundation.http_api.json_body import read_body
from foundation.http_api.openapi import described
from foundation.http_api.parameters import FLAG_SCHEMA, PARAMETERS, flag_parameter
from foundation.http_api.problems import FieldError, validation_problem
from gpus.api.base import actor, read_optional_body
from jobs.api import answers, bodies
from jobs.api.base import OperatorView, job_summaries, require_visible, shown_job, visible_job
from jobs.api.parameters import FILTERS, JOB_ID, JobPages, body_filter, query_filter
from jobs.operations.bulk import BulkAction, BulkOutcome, cancel_jobs, count, dismiss_jobs, retry_jobs
from jobs.operations.jobs import dismiss_dead_letter, retry_dead_letter
from jobs.operations.queue_position import change_priority, run_next
from jobs.reports.failures import GROUPS, dead_letter_groups
from jobs.reports.jobs import JobFilter, dead_letters


class DeadLetters(OperatorView):
    @described(
        "list_dead_letters",
        "Dead letters, newest first",
        answers={200: answers.JobPage},
        refusals=(400, 403),
        parameters=(*FILTERS, *PARAMETERS),
        tag="admin",
        description="Failed jobs that were neither retried nor dismissed.",
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
        description="A kind is an error code and a message without numbers, ids, paths and quoted text. "
        f"The first {GROUPS} groups.",
    )
    def get(self, request: Request) -> Response:
        return Response({"results": [group.as_json() for group in dead_letter_groups(query_filter(request))]})


class RetryDeadLetters(OperatorView):
    @described(
        "retry_dead_letters",
        "Retry all failed jobs, or those that match a filter, up to a thousand per call",
        answers={200: answers.Retried},
        refusals=(400, 403),
        parameters=(*FILTERS, OpenApiParameter("dry_run", FLAG_SCHEMA)),
        body=bodies.RetryBody,
        body_required=False,
        tag="admin",
        description="The filter is in the parameters, the body, or both. With `dry_run` no job is retried, "
        "and `remaining` is the number of matching jobs.",
    )
    def post(self, request: Request) -> Response:
        chosen, dry_run = _filter_and_mode(request)
        if dry_run:
            return Response(
                {"retried": 0, "remaining": count(chosen, BulkAction.RETRY, self.ports), "dry_run": True}
            )
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
        "Dismiss a failed job: remove it from the list",
        answers={204: None},
        refusals=(403, 404, 409),
        parameters=(JOB_ID,),
        tag="admin",
    )
    def delete(self, request: Request, job_id: str) -> Response:
        dismiss_dead_letter(require_visible(request, job_id), ports=self.ports, by=actor(request))
        return Response(status=204)


def _filter_and_mode(request: Request) -> tuple[JobFilter, bool]:
    """Return the filter, merged from query and body, and True for a dry run. Raises Problem."""
    in_query = query_filter(request, "dry_run")
    body = read_optional_body(bodies.RetryBody, request.data)
    given = body.given()
    if twice := sorted(set(given) & set(request.query_params)):
        raise validation_problem(
            [FieldError(f"/{twice[0]}", "invalid", "The query has this field, too: send it once.")]
        )
    named = {name: value for name, value in given.items() if name != "dry_run"}
    in_body = body_filter(named, "")
    dry_run = body.dry_run or flag_parameter(request, "dry_run") is True
    return replace(in_query, **{name: getattr(in_body, name) for name in named}), dry_run


# -- bulk operations ----------------------------------------------------------------------------

_REPEAT = "Up to a thousand per call: repeat the request while `remaining` is positive."


def _described_bulk(operation: str, summary: str, description: str) -> Callable[[Any], Any]:
    return described(
        operation,
        summary,
        answers={200: answers.BulkOutcome},
        refusals=(403,),
        body=bodies.BulkBody,
        tag="admin",
        description=description,
    )


class BulkView(OperatorView):
    """Base of the bulk operations."""

    def carry_out(self, request: Request, action: BulkAction, act: Callable[..., BulkOutcome]) -> Response:
        """Run `act` on the jobs that match the request's filter, or only count them in a dry run."""
        body = read_body(bodies.BulkBody, request.data)
        chosen, dry_run = body_filter(body.filter.given(), "/filter"), body.dry_run
        if dry_run:
            done = BulkOutcome(0, count(chosen, action, self.ports), 0)
        else:
            done = act(chosen, by=actor(request), ports=self.ports)
        return Response(
            {"done": done.done, "remaining": done.remaining, "refused": done.refused, "dry_run": dry_run}
        )


class CancelJobs(BulkView):
    @_described_bulk(
        "cancel_jobs",
        "Cancel all jobs that match",
        f"Waiting jobs are cancelled, running jobs are stopped. {_REPEAT}",
    )
    def post(self, request: Request) -> Response:
        return self.carry_out(request, BulkAction.CANCEL, cancel_jobs)


class RetryJobs(BulkView):
    @_described_bulk(
        "retry_jobs",
        "Retry all failed jobs that match",
        f"Dead letters only, the oldest failures first. {_REPEAT}",
    )
    def post(self, request: Request) -> Response:
        return self.carry_out(request, BulkAction.RETRY, retry_jobs)


class DismissDeadLetters(BulkView):
    @_described_bulk("dismiss_dead_letters", "Dismiss all failed jobs that match", _REPEAT)
    def post(self, request: Request) -> Response:
        return self.carry_out(request, BulkAction.DISMISS, dismiss_jobs)


# -- the place in the queue ---------------------------------------------------------------------


class ChangePriority(OperatorView):
    @described(
        "change_priority",
        "Change the priority of a waiting job",
        answers={200: answers.Job},
        refusals=(403, 404, 409),
        body=bodies.PriorityBody,
        parameters=(JOB_ID,),
        tag="admin",
        description="Among jobs of the new priority it is ordered by its time of submit. 409: the "
        "job runs or has ended.",
    )
    def post(self, request: Request, job_id: str) -> Response:
        job_id = require_visible(request, job_id)
        priority = read_body(bodies.PriorityBody, request.data).priority
        change_priority(job_id, priority, by=actor(request), ports=self.ports)
        return Response(shown_job(request, visible_job(request, job_id)))


class RunNext(OperatorView):
    @described(
        "run_next",
        "Run a waiting job next",
        answers={200: answers.Job},
        refusals=(403, 404, 409),
        parameters=(JOB_ID,),
        tag="admin",
        description="Sets priority 1 and a place before all other jobs: the job runs before its "
        "tenant's other jobs "
        "and, in a fair pool, at its tenant's next turn among urgent jobs. 409: the job runs or has ended.",
    )
    def post(self, request: Request, job_id: str) -> Response:
        job_id = require_visible(request, job_id)
        run_next(job_id, by=actor(request), ports=self.ports)
        return Response(shown_job(request, visible_job(request, job_id)))
