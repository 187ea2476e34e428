"""Views for clients: list, read, follow and cancel jobs, explain why a job waits, and estimate the start of a
job before it is submitted."""

from __future__ import annotations

import re
from dataclasses import asdict
from typing import Any, cast

from django.conf import settings
from django.http import HttpResponse
from drf_spectacular.utils import OpenApiParameter, OpenApiResponse, extend_schema
from rest_framework.renderers import BaseRenderer, JSONRenderer
from rest_framework.request import Request
from rest_framework.response import Response

from foundation.http_api.openapi import REFUSALS, described, reference
from foundation.http_api.openapi import Problem as ProblemJson
from foundation.http_api.parameters import PARAMETERS
from foundation.http_api.problems import MEDIA_TYPE, FieldError, Problem
from jobs.api import answers
from jobs.api.base import (
    JobView,
    job_summaries,
    operator_of,
    principal_of,
    require_payloads,
    require_visible,
    shown_job,
    tenant_of,
    visible_job,
)
from jobs.api.parameters import (
    ATTEMPTS_BEFORE,
    INCLUDE,
    INCLUDED,
    JOB_ID,
    TEXT,
    WAIT,
    JobPages,
    allow_only,
    attempts_before_parameter,
    choice_parameter,
    text_parameter,
    time_parameter,
    wait_parameter,
)
from jobs.api.representations import starts_json
from jobs.api.submit import RateLimitedView, max_submit_bytes
from jobs.domain.access import Scope, may_see_details, may_see_payloads, shown_streams
from jobs.domain.states import JobState, is_final
from jobs.events.handover import FOLLOW_HEADER, WAIT_HEADER, Follow, WaitFor, answers_submit, offered
from jobs.events.hub import done_event, read_new_events
from jobs.operations.explain_job import Explanation, estimate_job, explain_job
from jobs.operations.jobs import CancelOutcome, cancel_job, slot_held_until
from jobs.reports.jobs import list_jobs
from jobs.submission.request import Submit, check_request, read_request

_STATUSES = [state.value for state in JobState]
EVENT_ID = re.compile(r"[0-9]{1,9}\Z")


class Jobs(JobView):
    @described(
        "list_jobs",
        "Your jobs, newest first",
        answers={200: answers.JobPage},
        refusals=(400,),
        parameters=(
            OpenApiParameter("status", str, enum=_STATUSES),
            OpenApiParameter("model", TEXT),
            OpenApiParameter("tag", TEXT),
            OpenApiParameter("created_after", {"type": "string", "format": "date-time"}),
            OpenApiParameter("created_before", {"type": "string", "format": "date-time"}),
            *PARAMETERS,
        ),
        description="Without results: read the job itself for its result.",
    )
    def get(self, request: Request) -> Response:
        allow_only(request, ("status", "model", "tag", "created_after", "created_before", "cursor", "limit"))
        rows = list_jobs(
            principal_of(request),
            status=choice_parameter(request, "status", _STATUSES),
            model=text_parameter(request, "model"),
            tag=text_parameter(request, "tag"),
            created_after=time_parameter(request, "created_after"),
            created_before=time_parameter(request, "created_before"),
        )
        pages = JobPages()
        page = pages.paginate_queryset(rows, request, view=self) or []
        return pages.get_paginated_response(job_summaries(request, page))


class JobDetail(JobView):
    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        if answers_submit(request.META):  # a key with the scope `submit` may read the answer to its submit
            self.scopes = {"GET": Scope.SUBMIT}
        super().initial(request, *args, **kwargs)

    @described(
        "get_job",
        "A job with its attempts and its result",
        answers={200: answers.JobWithPayload},
        refusals=(400, 403, 404),
        parameters=(JOB_ID, WAIT, ATTEMPTS_BEFORE, INCLUDE),
    )
    def get(self, request: Request, job_id: str) -> Response:
        allow_only(request, ("wait", "attempts_before", "include"))
        wait, before = wait_parameter(request), attempts_before_parameter(request)
        with_payload = choice_parameter(request, "include", INCLUDED) is not None
        if with_payload:
            require_payloads(request)
        job = visible_job(request, job_id, attempts_before=before, with_payload=with_payload)
        headers = {}
        if wait and before is None and not is_final(JobState(job.state)) and offered(request.META):
            headers[WAIT_HEADER] = WaitFor(job.id, wait).as_header()
        body = cast("answers.JobWithPayload", shown_job(request, job))
        if with_payload:
            body["payload"] = job.payload
        return Response(body, headers=headers)


def stream_schema(
    operation_id: str,
    summary: str,
    description: str,
    *,
    tag: str,
    id_parameter: OpenApiParameter,
    pattern: str,
    in_query: dict[str, Any] | None = None,
) -> Any:
    """Return the decorator that describes an event stream for the schema of the API.

    id_parameter: of the job or run. pattern: of the ids of its events. in_query: schema of such an id as
    parameter; None: the same as of the header.
    """
    event_id = {"type": "string", "pattern": pattern}
    return extend_schema(
        operation_id=operation_id,
        summary=summary,
        description=description,
        tags=[tag],
        parameters=[
            id_parameter,
            OpenApiParameter(
                "Last-Event-ID",
                event_id,
                OpenApiParameter.HEADER,
                description="Id of the last event received.",
            ),
            OpenApiParameter(
                "last_event_id",
                in_query or event_id,
                description="The same as the header, for clients that can't set headers.",
            ),
        ],
        responses={
            (200, "text/event-stream"): OpenApiResponse({"type": "string"}, "The stream."),
            **{
                (status, MEDIA_TYPE): OpenApiResponse(reference(ProblemJson), REFUSALS[status])
                for status in (400, 401, 404, 406, 429, 503)
            },
        },
    )


class EventStreamRenderer(BaseRenderer):
    """Makes DRF accept `Accept: text/event-stream`; the view itself writes the stream."""

    media_type = "text/event-stream"
    format = "sse"

    def render(
        self, data: Any, accepted_media_type: str | None = None, renderer_context: Any = None
    ) -> bytes:
        return b""


class JobEvents(JobView):
    """Event stream of a job. Under ASGI the gateway keeps the stream open (`jobs.events`); under plain WSGI
    the response has the events so far, and a browser's EventSource reconnects for more."""

    renderer_classes = (EventStreamRenderer, JSONRenderer)

    @stream_schema(
        "follow_job",
        "A job's events as they happen (Server-Sent Events)",
        "Event ids increase; `Last-Event-ID` continues after one. The stream ends with "
        "`event: done`. "
        "Readers that may not see results get `partial` events without `output`.",
        tag="queue",
        id_parameter=JOB_ID,
        pattern="^[0-9]{1,9}$",
        in_query={"type": "integer", "minimum": 0, "maximum": 999_999_999},
    )
    def get(self, request: Request, job_id: str) -> HttpResponse:
        allow_only(request, ("last_event_id",))
        job_id = require_visible(request, job_id)
        after = int(last_event_id(request, EVENT_ID, "Must be the id of an event, up to 9 digits."))
        reader = principal_of(request)
        with_output, in_full = may_see_payloads(reader), may_see_details(reader)
        streams = shown_streams(reader, settings.DISPATCHER.tenant_logs)
        if offered(request.META):
            follow = Follow(job_id, after, with_output, in_full, reader.name, streams)
            return HttpResponse(headers={FOLLOW_HEADER: follow.as_header()})
        news = read_new_events({job_id: after}).get(job_id)
        chunks = (
            [event.as_sse(with_output=with_output, in_full=in_full, streams=streams) for event in news.events]
            if news
            else []
        )
        if news is None or news.is_over:
            chunks.append(done_event(job_id, news.status if news else "gone"))
        return HttpResponse(b"".join(chunks), content_type="text/event-stream; charset=utf-8")


class CancelJob(JobView):
    scopes = {"POST": Scope.CANCEL}

    @described(
        "cancel_job",
        "Cancel a job",
        answers={200: answers.Cancelled, 202: answers.Cancelled},
        refusals=(404, 409),
        parameters=(JOB_ID,),
        description="200: the job was waiting and is cancelled. 202: the job is running and is "
        "being stopped; it is "
        "cancelled once its GPU server confirms the stop or answers the run's request, at the latest at "
        "`may_hold_slot_until`. 409: the job has ended.",
    )
    def post(self, request: Request, job_id: str) -> Response:
        job_id = require_visible(request, job_id)
        outcome = cancel_job(job_id, ports=self.ports, by=operator_of(request))
        if outcome is CancelOutcome.CANCELLED:
            return Response({"job_id": job_id, "outcome": outcome.value, "may_hold_slot_until": None})
        until = slot_held_until(job_id)
        body = {
            "job_id": job_id,
            "outcome": outcome.value,
            "may_hold_slot_until": until.isoformat() if until else None,
        }
        return Response(body, status=202)


def last_event_id(request: Request, pattern: re.Pattern[str], rule: str) -> str:
    """Return the id after which a stream goes on, from the header or the query; "0" without one.

    pattern: of an id. rule: says it in words. Raises Problem 400.
    """
    header = request.headers.get("Last-Event-ID")
    text = header if header is not None else request.query_params.get("last_event_id", "0")
    if not pattern.match(text):
        place = "query" if header is None else "header"
        name = "last_event_id" if header is None else "Last-Event-ID"
        error = FieldError(f"/{name}", "invalid_parameter", rule, place=place)
        raise Problem(400, "invalid_parameter", f"{name}: {error.detail}", errors=[error])
    return text


class ExplainJob(JobView):
    @described(
        "explain_job",
        "Why a job waits, and when it will start",
        answers={200: answers.Explanation},
        refusals=(404,),
        parameters=(JOB_ID,),
        description="Reasons, the most binding first: change that one first. About other tenants "
        "it contains only "
        "the number of jobs before this one. A job that does not wait gets one reason, its state.",
    )
    def get(self, request: Request, job_id: str) -> Response:
        allow_only(request, ())
        job = visible_job(request, job_id)
        found = {"job_id": job.id, "status": str(job.state), **explanation_json(explain_job(job, self.ports))}
        return Response(found)


class EstimateJob(RateLimitedView):
    def max_body_bytes(self) -> int:
        return max_submit_bytes()

    @described(
        "estimate_job",
        "Why a job would wait if it were submitted now, and when it would start",
        answers={200: answers.Estimate},
        refusals=(403, 429),
        body=Submit,
        description="Takes the body of a submit, with the same checks; it costs one token of the rate limit. "
        "No job is stored. Errors that a submit would get now (rate, quota, a full queue) are the "
        "first reasons.",
    )
    def post(self, request: Request) -> Response:
        tenant_id = tenant_of(request)
        headers = self.take_token(request, tenant_id)
        submit = read_request(request.data)
        check_request(submit, tenant=tenant_id, ports=self.ports, key_models=principal_of(request).models)
        found = estimate_job(
            submit.body.model, tenant_id, submit.body.priority, self.ports, run_at=submit.body.run_at
        )
        return Response(explanation_json(found), headers=headers)


def explanation_json(found: Explanation) -> answers.Estimate:
    """Return the body of an explanation."""
    return {
        "reasons": cast("list[answers.Reason]", [asdict(reason) for reason in found.reasons]),
        "position": found.position,
        "starts_in": starts_json(found.starts),
    }
