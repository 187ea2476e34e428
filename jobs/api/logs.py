"""GET /queue/jobs/{id}/logs: the log lines of a job, as text or as JSON lines, perhaps as they come."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.http import HttpResponse
from drf_spectacular.utils import OpenApiParameter, OpenApiResponse, extend_schema
from rest_framework.renderers import BaseRenderer, JSONRenderer
from rest_framework.request import Request

from foundation.http_api.openapi import REFUSALS, reference
from foundation.http_api.openapi import Problem as ProblemJson
from foundation.http_api.problems import MEDIA_TYPE, Problem, parameter_problem
from jobs.api.base import JobView, principal_of, require_visible
from jobs.api.parameters import (
    JOB_ID,
    allow_only,
    choice_parameter,
    text_parameter,
    time_parameter,
    whole_parameter,
)
from jobs.domain.access import Principal, may_see_details, may_see_payloads, shown_streams
from jobs.events.handover import FOLLOW_HEADER, Follow, FollowLog, offered
from jobs.events.log_lines import (
    Cursor,
    LogChoice,
    StoredLine,
    as_json_lines,
    as_text,
    read_cursor,
    read_last_lines,
    read_lines,
)
from jobs.events.stream import log_headers

MOST_TAIL = 10_000
_MOST_ATTEMPT = 999_999_999
_FORMATS = ("text", "jsonl")
_FLAGS = ("0", "1", "false", "true")
_CURSOR = {"type": "string", "pattern": r"^[0-9]{1,9}(\.[0-9]{1,6})?$"}


class _Text(BaseRenderer):
    """Makes DRF accept `Accept: text/plain`; the view itself writes the lines."""

    media_type = "text/plain"
    format = "text"

    def render(
        self, data: Any, accepted_media_type: str | None = None, renderer_context: Any = None
    ) -> bytes:
        return b""


class _JsonLines(_Text):
    media_type = "application/x-ndjson"
    format = "jsonl"


class JobLogs(JobView):
    """Log lines of a job. Under ASGI the gateway keeps `?follow=1` open (`jobs.events`); under plain WSGI the
    response has the lines so far."""

    renderer_classes = (_Text, _JsonLines, JSONRenderer)

    @extend_schema(
        operation_id="job_logs",
        summary="The log lines of a job",
        description="What the model's code printed and logged, and its tracebacks, bounded per job. Which "
        "lines a tenant reads is the operator's choice (`DISPATCHER_TENANT_LOGS`). As text, a line "
        "is `TIME #ATTEMPT STREAM TEXT`. With `follow` the answer ends with the job.",
        tags=["queue"],
        parameters=[
            JOB_ID,
            OpenApiParameter(
                "format", str, enum=_FORMATS, description="Instead of the Accept header. Default: text."
            ),
            OpenApiParameter(
                "follow", str, enum=_FLAGS, description="Go on until the job ends. Needs the ASGI server."
            ),
            OpenApiParameter(
                "attempt",
                {"type": "integer", "minimum": 1, "maximum": _MOST_ATTEMPT},
                description="Lines of this attempt only.",
            ),
            OpenApiParameter(
                "after", _CURSOR, description="Lines after the one with this `id` (of a JSON line)."
            ),
            OpenApiParameter(
                "since",
                {"type": "string", "format": "date-time"},
                description="Lines of this time and later.",
            ),
            OpenApiParameter(
                "tail",
                {"type": "integer", "minimum": 1, "maximum": MOST_TAIL},
                description="The last lines only, as many as this.",
            ),
        ],
        responses={
            (200, "text/plain"): OpenApiResponse({"type": "string"}, "The lines."),
            (200, "application/x-ndjson"): OpenApiResponse(
                {"type": "string"},
                "A JSON object per line: `id`, `at`, `attempt`, `stream` (stdout, stderr or log), `level`, "
                "`text`; `left_out`, if it stands for so many lines.",
            ),
            **{
                (status, MEDIA_TYPE): OpenApiResponse(reference(ProblemJson), REFUSALS[status])
                for status in (400, 401, 403, 404, 406, 429, 503)
            },
        },
    )
    def get(self, request: Request, job_id: str) -> HttpResponse:
        allow_only(request, ("format", "follow", "attempt", "after", "since", "tail"))
        is_json = _wants_json(request)
        follows = choice_parameter(request, "follow", _FLAGS) in ("1", "true")
        choice = LogChoice(
            attempt=whole_parameter(request, "attempt", most=_MOST_ATTEMPT, default=0),
            since=time_parameter(request, "since"),
            after=_after(request),
        )
        tail = whole_parameter(request, "tail", most=MOST_TAIL, default=0)
        job_id, reader = require_visible(request, job_id), principal_of(request)
        choice = choice.of(_streams(reader))
        if follows and offered(request.META):
            return HttpResponse(headers={FOLLOW_HEADER: _follow(job_id, choice, tail, reader, is_json)})
        lines = read_last_lines(job_id, choice, tail) if tail else list(read_lines(job_id, choice))
        return _answer(lines, is_json=is_json)


def _streams(reader: Principal) -> frozenset[str]:
    """Return the streams that the reader may see. Raises Problem 403 if there are none."""
    streams = shown_streams(reader, settings.DISPATCHER.tenant_logs)
    if not streams:
        why = (
            "Tenants read no log lines here (DISPATCHER_TENANT_LOGS=none)."
            if may_see_payloads(reader)
            else "Seeing log lines takes the permission jobs.view_payload."
        )
        raise Problem(403, "logs_hidden", why)
    return streams


def _follow(job_id: str, choice: LogChoice, tail: int, reader: Principal, is_json: bool) -> str:
    after = choice.after
    if tail:
        last = read_last_lines(job_id, choice, tail)
        if last:
            first = last[0].id
            after = Cursor(first.seq, first.line - 1)
    log = FollowLog(
        is_json=is_json,
        attempt=choice.attempt,
        since=None if choice.since is None else choice.since.timestamp(),
        after_line=after.line,
    )
    return Follow(
        job_id, after.seq, False, may_see_details(reader), reader.name, choice.streams, log
    ).as_header()


def _answer(lines: list[StoredLine], *, is_json: bool) -> HttpResponse:
    content = as_json_lines(lines) if is_json else as_text(lines)
    headers = {name.decode().title(): value.decode() for name, value in log_headers(is_json=is_json)}
    return HttpResponse(content, headers=headers)


def _wants_json(request: Request) -> bool:
    chosen = choice_parameter(request, "format", _FORMATS)
    if chosen is not None:
        return chosen == "jsonl"
    renderer: Any = request.accepted_renderer  # type: ignore[attr-defined]
    return bool(renderer.format != "text")


def _after(request: Request) -> Cursor:
    text = text_parameter(request, "after")
    if text is None:
        return Cursor()
    found = read_cursor(text)
    if found is None:
        raise parameter_problem("after", "Must be the `id` of a JSON line, such as 12.3.")
    return found
