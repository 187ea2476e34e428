"""API errors: RFC 9457 problem+json with a stable code (docs/reference/api_errors.md)."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from foundation.secrets import hide_keys

MEDIA_TYPE = "application/problem+json"
RETRYABLE_STATUSES = frozenset({408, 425, 429, 500, 502, 503, 504})
RETRY_LATER_STATUSES = frozenset({429, 503})
RETRY_AFTER_SECONDS = 5.0
MAX_ERRORS = 20
_MAX_DETAIL = 300


@dataclass(frozen=True, slots=True)
class FieldError:
    """An error at one place of the request.

    pointer: a JSON pointer (RFC 6901) into the body, or ``/<name>`` of a parameter or header. place: body,
    query, path or header; `in` in JSON."""

    pointer: str
    code: str
    detail: str
    place: str = "body"

    def as_json(self) -> dict[str, str]:
        return {
            "pointer": hide_keys(self.pointer),
            "in": self.place,
            "code": self.code,
            "detail": hide_keys(self.detail)[:_MAX_DETAIL],
        }


class Problem(Exception):
    """Raised to end the request with this error.

    retry_after_seconds: also the `Retry-After` header, in whole seconds; a 429 or 503 without one gets
    `RETRY_AFTER_SECONDS`. retryable: None decides by the status."""

    def __init__(
        self,
        status: int,
        code: str,
        detail: str,
        *,
        errors: Sequence[FieldError] = (),
        headers: Mapping[str, str] | None = None,
        retryable: bool | None = None,
        retry_after_seconds: float | None = None,
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.code = code
        self.detail = detail
        self.errors = tuple(errors[:MAX_ERRORS])
        self.headers = dict(headers or {})
        self.retry_after_seconds = None
        if retry_after_seconds is None and status in RETRY_LATER_STATUSES:
            retry_after_seconds = RETRY_AFTER_SECONDS
        if retry_after_seconds is not None:
            self.retry_after_seconds = max(1, math.ceil(retry_after_seconds))
            self.headers["Retry-After"] = str(self.retry_after_seconds)
        self.retryable = status in RETRYABLE_STATUSES if retryable is None else retryable

    def as_json(self) -> dict[str, Any]:
        """Return the body of the answer."""
        body: dict[str, Any] = {
            "type": f"urn:gpu-dispatcher:problem:{self.code}",
            "title": HTTPStatus(self.status).phrase,
            "status": self.status,
            "code": self.code,
            "detail": hide_keys(self.detail)[:_MAX_DETAIL],
            "retryable": self.retryable,
        }
        if self.retry_after_seconds is not None:
            body["retry_after_seconds"] = self.retry_after_seconds
        if self.errors:
            body["errors"] = [error.as_json() for error in self.errors]
        return body

    def as_bytes(self) -> bytes:
        return json.dumps(self.as_json()).encode()


def validation_problem(errors: Sequence[FieldError]) -> Problem:
    """Return the 422 for a body that is valid JSON with invalid fields."""
    first = errors[0]
    more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    return Problem(
        422, "validation_failed", f"{first.pointer or 'body'}: {first.detail}{more}", errors=errors
    )


def parameter_problem(name: str, detail: str, *, code: str = "invalid_parameter") -> Problem:
    """Return the 400 for a query parameter."""
    return Problem(400, code, detail, errors=[FieldError(f"/{name}", code, detail, place="query")])
