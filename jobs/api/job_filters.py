"""Which jobs an operator means: from the query, or from a body. A tenant that does not exist is a mistake,
not a filter that finds nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from drf_spectacular.utils import OpenApiParameter
from rest_framework.request import Request

from foundation.http_api.problems import FieldError, Problem, parameter_problem
from jobs.api.parameters import (
    FINGERPRINT,
    TEXT,
    allow_only,
    fingerprint_parameter,
    text_parameter,
)
from jobs.domain.states import JobState
from jobs.reports.job_filter import JobFilter

PARAMETERS = (
    OpenApiParameter("model", TEXT),
    OpenApiParameter("tenant", TEXT, description="Its name."),
    OpenApiParameter("error_code", TEXT),
    OpenApiParameter("fingerprint", FINGERPRINT, description="Of a group: one kind of failure."),
)
_UNKNOWN_TENANT = "There is no such tenant."


def query_filter(request: Request, *others: str) -> JobFilter:
    """others: parameters that the route takes besides. Raises Problem 400."""
    allow_only(request, (*(parameter.name for parameter in PARAMETERS), *others))
    chosen = JobFilter(
        model=text_parameter(request, "model"),
        tenant=text_parameter(request, "tenant"),
        error_code=text_parameter(request, "error_code"),
        fingerprint=fingerprint_parameter(request),
    )
    if not chosen.tenant_exists():
        raise parameter_problem("tenant", _UNKNOWN_TENANT, code="unknown_tenant")
    return chosen


def body_filter(given: Mapping[str, Any], at: str) -> JobFilter:
    """given: the fields of a `bodies.BulkFilter`. at: pointer to it. Raises Problem 422."""
    values = dict(given)
    if "state" in values:
        values["state"] = JobState(values["state"])
    chosen = JobFilter(**values)
    if not chosen.tenant_exists():
        error = FieldError(f"{at}/tenant", "unknown_tenant", _UNKNOWN_TENANT)
        raise Problem(422, "unknown_tenant", _UNKNOWN_TENANT, errors=[error])
    return chosen
