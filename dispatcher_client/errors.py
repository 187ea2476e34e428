"""The client's exceptions, and parsing of error answers: they carry the fields of the API's problem+json."""

from __future__ import annotations

import email.utils
import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any


def read_json(text: str | bytes) -> Any:
    """Parse JSON. Raises ValueError, also if it is nested too deeply for Python's parser."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deep") from None


_RETRYABLE = frozenset({408, 425, 429, 500, 502, 503, 504})
_MAX_DETAIL = 300
_MAX_DIGITS = 9


class DispatcherError(Exception):
    """Base of the client's errors.

    idempotency_key: of the submit that failed; the same request under this key is safe to send again."""

    idempotency_key: str | None = None


class NoAnswer(DispatcherError):
    """No answer came, or one that can't be parsed. The dispatcher may have carried out the request."""


class AnswerTooLarge(DispatcherError):
    """The answer has more than `max_answer_bytes`. The dispatcher may have carried out the request; it is not
    retried."""

    def __init__(self, max_answer_bytes: int) -> None:
        super().__init__(f"The answer has more than {max_answer_bytes} bytes.")


class Spooled(DispatcherError):
    """No answer came, so the request is stored in the spool file until `flush_spool` sends it under its
    key."""

    def __init__(self, idempotency_key: str, spool: Path) -> None:
        super().__init__(f"No answer: the request waits in {spool} under the key {idempotency_key}.")
        self.idempotency_key = idempotency_key
        self.spool = spool


@dataclass(frozen=True, slots=True)
class FieldProblem:
    """An error at one place of the request.

    pointer: a JSON pointer into the body, or ``/<name>`` of a parameter. place: body, query, path or header.
    """

    pointer: str
    code: str
    detail: str
    place: str = "body"


class Problem(DispatcherError):
    """The dispatcher answered with an error (docs/reference/api_errors.md lists the codes).

    code: stable; ``http_<status>`` if the answer was not the dispatcher's own. is_documented: it was."""

    def __init__(
        self,
        status: int,
        code: str,
        detail: str,
        *,
        retryable: bool,
        errors: tuple[FieldProblem, ...] = (),
        retry_after_seconds: float | None = None,
        is_documented: bool = True,
    ) -> None:
        super().__init__(f"{status} {code}: {detail}")
        self.status = status
        self.code = code
        self.detail = detail
        self.retryable = retryable
        self.errors = errors
        self.retry_after_seconds = retry_after_seconds
        self.is_documented = is_documented

    @property
    def pointer(self) -> str | None:
        """The first place with an error."""
        return self.errors[0].pointer if self.errors else None

    def as_json(self) -> dict[str, Any]:
        return {
            "status": self.status,
            "code": self.code,
            "detail": self.detail,
            "retryable": self.retryable,
            "errors": [asdict(error) for error in self.errors],
        }


class Unavailable(Problem):
    """The same request may succeed later: 408, 425, 429, 5xx."""


class Busy(Problem):
    """Answer to a submit with ``if_busy="reject"``; nothing is stored, and the client does not retry.

    No slot is free now (503 `busy`), no healthy server runs the model (503 `no_capacity`), or the tenant has
    reached its limit of running jobs (429 `tenant_running_full`)."""


class NotAuthenticated(Problem):
    """401: the API key is missing, wrong, revoked or expired."""


class NotAllowed(Problem):
    """403: the key lacks the permission."""


class NotFound(Problem):
    """404: no such job, or another tenant's."""


class Conflict(Problem):
    """409: the job has ended and can't be cancelled."""


class Invalid(Problem):
    """400, 413, 415, 422: the request is invalid, see `errors`."""


_NOT_RETRIED = frozenset({"busy", "no_capacity", "tenant_running_full"})
_BY_STATUS: dict[int, type[Problem]] = {
    401: NotAuthenticated,
    403: NotAllowed,
    404: NotFound,
    409: Conflict,
    **dict.fromkeys((400, 413, 415, 422), Invalid),
}


def read_problem(status: int, headers: Mapping[str, str], body: bytes) -> Problem:
    """Return the error for an answer that is not a success. headers: names in lower case."""
    document = _document(headers, body)
    code, given, detail = document.get("code"), document.get("retryable"), document.get("detail")
    retryable = given if isinstance(given, bool) else status in _RETRYABLE
    kind = Unavailable if retryable else _BY_STATUS.get(status, Problem)
    if isinstance(code, str) and code in _NOT_RETRIED:
        kind = Busy
    return kind(
        status,
        code if isinstance(code, str) else f"http_{status}",
        detail if isinstance(detail, str) else body[:_MAX_DETAIL].decode(errors="replace").strip(),
        retryable=retryable,
        errors=_field_problems(document.get("errors")),
        retry_after_seconds=_retry_after(headers.get("retry-after", "")),
        is_documented=isinstance(code, str),
    )


def problem_from_json(document: Mapping[str, Any]) -> Problem:
    """Return the error of one item of a batch."""
    status = document.get("status")
    headers = {"content-type": "application/problem+json"}
    return read_problem(status if isinstance(status, int) else 422, headers, json.dumps(document).encode())


def _document(headers: Mapping[str, str], body: bytes) -> Mapping[str, Any]:
    if not headers.get("content-type", "").startswith("application/problem+json"):
        return {}
    try:
        document = read_json(body)
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}


def _field_problems(document: Any) -> tuple[FieldProblem, ...]:
    found = [error for error in document if isinstance(error, dict)] if isinstance(document, list) else []
    return tuple(
        FieldProblem(
            str(error.get("pointer", "")),
            str(error.get("code", "")),
            str(error.get("detail", "")),
            str(error.get("in", "body")),
        )
        for error in found
    )


def _retry_after(text: str) -> float | None:
    """Return seconds from now; RFC 9110 allows a number or a date."""
    if text.strip().isascii() and text.strip().isdigit():
        return float(text.strip()[:_MAX_DIGITS])
    try:
        return max(0.0, email.utils.parsedate_to_datetime(text).timestamp() - time.time())
    except (TypeError, ValueError, OverflowError):  # not a date, or out of range
        return None
