"""Query parameters of job views, the filter of jobs for operators (from query or body), and the cursor pages
of jobs. Unknown parameters are errors: a misspelt filter must not match all jobs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from django.conf import settings
from drf_spectacular.utils import OpenApiParameter
from rest_framework.request import Request

from foundation.http_api.json_body import NO_TIME, read_time
from foundation.http_api.parameters import (
    FLAG_SCHEMA,
    CursorPages,
    allow_only,
    choice_parameter,
    flag_parameter,
    text_parameter,
    text_schema,
    whole_parameter,
)
from foundation.http_api.problems import FieldError, Problem, parameter_problem
from foundation.ids import is_id
from jobs.api import bodies
from jobs.domain.access import VIEW_PAYLOAD
from jobs.domain.states import JobState
from jobs.reports.jobs import ATTEMPTS_SHOWN, JobFilter

__all__ = ["allow_only", "choice_parameter", "text_parameter"]

_MAX_ATTEMPTS = 999_999_999
_SECONDS = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?\Z")

JOB_ID = OpenApiParameter(
    "job_id", str, OpenApiParameter.PATH, description="Id of the job, from the response of its submit."
)
TEXT = text_schema()
FINGERPRINT = {"type": "string", "pattern": bodies.FINGERPRINT}
WAIT = OpenApiParameter(
    "wait",
    {"type": "number", "minimum": 0, "maximum": 999_999_999},
    description="Long poll: respond when the job has ended, or after this many seconds (capped). "
    "Needs the ASGI server; plain WSGI responds at once.",
)
ATTEMPTS_BEFORE = OpenApiParameter(
    "attempts_before",
    {"type": "integer", "minimum": 1, "maximum": _MAX_ATTEMPTS},
    description=f"Return the last {ATTEMPTS_SHOWN} attempts with a lower number than this. `wait` "
    "is ignored.",
)

INCLUDED = ("payload",)
INCLUDE = OpenApiParameter(
    "include",
    str,
    enum=INCLUDED,
    description="`payload`: with the job's payload. It needs the scope `read`, of staff the permission "
    f"`{VIEW_PAYLOAD}`.",
)


def attempts_before_parameter(request: Request) -> int | None:
    if "attempts_before" not in request.query_params:
        return None
    return whole_parameter(request, "attempts_before", most=_MAX_ATTEMPTS, default=1)


def job_id_of(text: str) -> str:
    """Return the id; raises Problem 404 if it is malformed."""
    if not is_id(text):
        raise unknown_job()
    return text


def unknown_job() -> Problem:
    error = FieldError("/job_id", "unknown_job", "There is no such job.", place="path")
    return Problem(
        404, "unknown_job", "There is no such job, it is not yours, or retention removed it.", errors=[error]
    )


def time_parameter(request: Request, name: str) -> datetime | None:
    value = request.query_params.get(name)
    if value is None:
        return None
    parsed = read_time(value.replace(" ", "+"))  # an unescaped + arrives as a space
    if parsed is None:
        raise parameter_problem(name, NO_TIME)
    return parsed


def fingerprint_parameter(request: Request) -> str | None:
    value = request.query_params.get("fingerprint")
    if value is not None and not re.fullmatch(bodies.FINGERPRINT, value):
        raise parameter_problem("fingerprint", "Must be 16 hexadecimal digits, in lower case.")
    return value


def wait_parameter(request: Request) -> float | None:
    value = request.query_params.get("wait")
    if value is None:
        return None
    if not _SECONDS.match(value):
        raise parameter_problem("wait", "Must be a number of seconds.")
    return min(float(value), settings.DISPATCHER.max_wait_seconds)


class JobPages(CursorPages):
    """Pages of jobs, the newest first."""

    ordering = "-id"
    position = re.compile(r"[0-9A-Z]{1,26}\Z")


# -- filter of jobs for operators ---------------------------------------------------------------

FILTERS = (
    OpenApiParameter("model", TEXT),
    OpenApiParameter("tenant", TEXT, description="Name of the tenant."),
    OpenApiParameter("error_code", TEXT),
    OpenApiParameter(
        "fingerprint", FINGERPRINT, description="Kind of failure, from the groups of dead letters."
    ),
    OpenApiParameter("client_errors", FLAG_SCHEMA, description=bodies.CLIENT_ERRORS),
)
_UNKNOWN_TENANT = "There is no such tenant."


def query_filter(request: Request, *others: str) -> JobFilter:
    """Return the filter in the query. others: further parameters of the route. Raises Problem 400, also for
    an unknown tenant."""
    allow_only(request, (*(parameter.name for parameter in FILTERS), *others))
    chosen = JobFilter(
        model=text_parameter(request, "model"),
        tenant=text_parameter(request, "tenant"),
        error_code=text_parameter(request, "error_code"),
        fingerprint=fingerprint_parameter(request),
        client_errors=flag_parameter(request, "client_errors") or None,
    )
    if not chosen.tenant_exists():
        raise parameter_problem("tenant", _UNKNOWN_TENANT, code="unknown_tenant")
    return chosen


def body_filter(given: Mapping[str, Any], at: str) -> JobFilter:
    """Return the filter in a body. given: the fields of a `bodies.BulkFilter`. at: JSON pointer to it. Raises
    Problem 422 for an unknown tenant."""
    values = dict(given)
    if "state" in values:
        values["state"] = JobState(values["state"])
    chosen = JobFilter(**values)
    if not chosen.tenant_exists():
        error = FieldError(f"{at}/tenant", "unknown_tenant", _UNKNOWN_TENANT)
        raise Problem(422, "unknown_tenant", _UNKNOWN_TENANT, errors=[error])
    return chosen
