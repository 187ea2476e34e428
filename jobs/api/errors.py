"""Converts every error of a request to problem+json: errors of this project, of DRF and of Django."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import structlog
from django.core.exceptions import SuspiciousOperation
from django.db import InterfaceError, OperationalError
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase
from django.views import csrf, defaults
from rest_framework import exceptions

import jobs.ports
from artifacts.errors import ArtifactRefused
from artifacts.store.contract import NoSuchObject, ObjectExists, PartBusy, StoreError, StoreFull, WrongBytes
from foundation.http_api.problems import MEDIA_TYPE, RETRY_LATER_STATUSES, FieldError, Problem
from gpus.errors import REDIS_AWAY, LeasingUnavailable
from jobs.domain.errors import Refused

log = structlog.get_logger()

API_PREFIX = "/api/"
_CODES: dict[type[exceptions.APIException], str] = {
    exceptions.ParseError: "malformed_json",
    exceptions.AuthenticationFailed: "invalid_key",
    exceptions.NotAuthenticated: "not_authenticated",
    exceptions.PermissionDenied: "permission_denied",
    exceptions.NotFound: "not_found",
    exceptions.MethodNotAllowed: "method_not_allowed",
    exceptions.NotAcceptable: "not_acceptable",
    exceptions.UnsupportedMediaType: "unsupported_media_type",
    exceptions.Throttled: "throttled",
}


def handle_exception(error: Exception, context: dict[str, Any]) -> HttpResponse:
    """DRF's EXCEPTION_HANDLER; it converts every exception, so that DRF never answers with an HTML page."""
    if isinstance(error, exceptions.MethodNotAllowed):
        allowed = ", ".join(context["view"].allowed_methods)
        error.detail = exceptions.ErrorDetail(f"{error.detail} Allowed: {allowed}.")
    return answer(problem_of(error))


def problem_of(error: Exception) -> Problem:
    """Return the problem that the client gets for an exception; logs unexpected ones."""
    if isinstance(error, Problem):
        return error
    if isinstance(error, Refused):
        return refusal_problem(error)
    if isinstance(error, ArtifactRefused):
        return Problem(error.status, error.code, str(error), retry_after_seconds=error.retry_after_seconds)
    if isinstance(error, StoreError):
        return store_problem(error)
    if isinstance(error, (OperationalError, InterfaceError)):
        log.error("database_unavailable", error=str(error).strip())
        return Problem(
            503,
            "database_unavailable",
            "The database does not answer. Try again, under the same Idempotency-Key.",
        )
    if isinstance(error, LeasingUnavailable):
        return Problem(503, "leasing_unavailable", f"{REDIS_AWAY}.")
    if isinstance(error, Http404):
        return Problem(404, "not_found", "The resource does not exist.")
    if isinstance(error, exceptions.APIException):
        return _from_framework(error)
    if isinstance(error, SuspiciousOperation):  # limits of Django itself, such as 1,000 parameters
        return Problem(400, "bad_request", "The request is malformed or exceeds a limit of the server.")
    log.error("request_failed", exc_info=error)
    return Problem(
        500, "internal_error", "An unexpected error occurred. The server's log has the event request_failed."
    )


def store_problem(error: StoreError) -> Problem:
    """Return the problem for an error of the store of artifacts; logs one that operators should know of."""
    if isinstance(error, NoSuchObject):
        return Problem(404, "artifact_missing", str(error))
    if isinstance(error, ObjectExists):
        return Problem(412, "artifact_exists", str(error))
    if isinstance(error, WrongBytes):
        return Problem(400, "artifact_bytes_wrong", str(error))
    if isinstance(error, PartBusy):
        return Problem(503, "artifact_part_busy", str(error), retry_after_seconds=2.0)
    log.error("artifact_store_unavailable", error=str(error), kind=type(error).__name__)
    if isinstance(error, StoreFull):
        return Problem(507, "artifact_store_full", str(error), retryable=True, retry_after_seconds=60.0)
    return Problem(503, "artifact_store_unavailable", str(error))


def answer(problem: Problem) -> HttpResponse:
    """Return the problem+json response, and count it for /metrics if its status is 429 or 503."""
    count_refusal(problem)
    return HttpResponse(
        problem.as_bytes(), status=problem.status, content_type=MEDIA_TYPE, headers=problem.headers
    )


def count_refusal(problem: Problem) -> None:
    """Count a 429 or 503 of this process, by code; the counts are written to the database periodically."""
    if problem.status in RETRY_LATER_STATUSES:
        jobs.ports.production_ports().request_refusals.add(problem.code)


def refusal_problem(refused: Refused, headers: Mapping[str, str] | None = None) -> Problem:
    """Return the problem for an error of the domain. headers: further header fields of the response."""
    errors = [FieldError(refused.pointer, refused.code, str(refused))] if refused.pointer is not None else []
    is_deep = (refused.pointer or "").count("/") > 1  # the text alone does not say where in a payload
    return Problem(
        refused.status,
        refused.code,
        f"{refused.pointer}: {refused}" if is_deep else str(refused),
        errors=errors,
        headers=headers,
        retry_after_seconds=refused.retry_after_seconds,
    )


def _from_framework(error: exceptions.APIException) -> Problem:
    detail = str(error.detail)
    code = _CODES.get(type(error), "refused")
    if isinstance(error, exceptions.PermissionDenied):
        given = getattr(error.detail, "code", None)
        code = "csrf_failed" if detail.startswith("CSRF Failed") else str(given or code)
    if isinstance(error, exceptions.NotAuthenticated):
        detail = "The request has no API key. Send one: `Authorization: Bearer <key>`."
    if isinstance(error, exceptions.UnsupportedMediaType):
        detail += " Send `Content-Type: application/json`."
    headers = {}
    if header := getattr(error, "auth_header", None):
        headers["WWW-Authenticate"] = str(header)
    wait = getattr(error, "wait", None)
    return Problem(error.status_code, code, detail, headers=headers, retry_after_seconds=wait)


# -- Django's error handlers -----------------------------------------------------------------------


def bad_request(request: HttpRequest, exception: Exception | None = None) -> HttpResponseBase:
    if not _is_api(request):
        return defaults.bad_request(request, exception or Exception())
    return answer(Problem(400, "bad_request", "The request is malformed or exceeds a limit of the server."))


def permission_denied(request: HttpRequest, exception: Exception | None = None) -> HttpResponseBase:
    if not _is_api(request):
        return defaults.permission_denied(request, exception or Exception())
    return answer(Problem(403, "permission_denied", "The request is not permitted."))


def not_found(request: HttpRequest, exception: Exception | None = None) -> HttpResponseBase:
    if not _is_api(request):
        return defaults.page_not_found(request, exception or Http404())
    return answer(Problem(404, "unknown_route", "There is no such route. /api/v1/schema lists all."))


def server_error(request: HttpRequest) -> HttpResponseBase:
    if not _is_api(request):
        return defaults.server_error(request)
    error = sys.exc_info()[1]
    return answer(problem_of(error if isinstance(error, Exception) else Exception("unknown")))


def csrf_failure(request: HttpRequest, reason: str = "") -> HttpResponseBase:
    if not _is_api(request):
        return csrf.csrf_failure(request, reason)
    return answer(Problem(403, "csrf_failed", "The CSRF token is missing or wrong. Reload the page."))


def _is_api(request: HttpRequest) -> bool:
    return request.path.startswith(API_PREFIX)


def unknown_route(request: HttpRequest, rest: str = "") -> HttpResponse:
    """View of the catch-all route; without it, Django with DEBUG on would answer with an HTML page."""
    return answer(
        Problem(404, "unknown_route", f"There is no route {request.path[:200]}. /api/v1/schema lists all.")
    )


unknown_route.csrf_exempt = True  # type: ignore[attr-defined]
