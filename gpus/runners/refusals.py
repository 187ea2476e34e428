"""Maps error answers of GPU servers to `GpuError`s, which carry their cost. Pure; table in
docs/reference/failures.md."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

from gpus.errors import (
    GPU_ERRORS,
    MAX_TRACEBACK,
    AccessForbidden,
    BadInput,
    CredentialsRefused,
    GpuBusy,
    GpuError,
    GpuFault,
    OutputNotStored,
    OutputRefused,
    RunFailed,
    ServerFailed,
    ServerLost,
    StaleFence,
    is_out_of_memory_text,
    is_sticky_fault_text,
)
from gpus.runners.base import Response
from gpus.runners.transport import Unreadable, read_json

MAX_MESSAGE = 500
_BUSY = frozenset({409, 429, 503})
_LOST = frozenset({502, 504, *range(520, 525)})
"""520 to 524: a CDN cannot reach the server behind it."""
_CREDENTIALS = frozenset({401, 407})
_FORBIDDEN = 403
_REPORTED = (BadInput, OutputNotStored, OutputRefused)
"""Failures that a server may name by their codes."""
HEADERS_HINT = (
    "The server refuses the headers that it is registered with: set them (admin page of the server, or "
    'POST /api/v1/admin/register with "headers")'
)
"""Advice for an operator on a 401, 403 or 407."""
_FOR_THE_CLIENT = frozenset({400, 413, 415, 422})
"""Statuses whose JSON error describes the input. Other error texts may reveal paths and proxies."""
_NOT_THE_INPUT = frozenset({408, 425})


def error_of(response: Response, *, now: datetime) -> GpuError:
    """The GpuError of an answer to a POST that is not 2xx. now: for HTTP dates in `Retry-After`."""
    status, text, parsed = (
        response.status,
        f"{response.status}: {message_of(response)}",
        json_object(response),
    )
    if status == 409 and _code(parsed) == "stale_fence":
        return StaleFence(f"The server has seen a later lease of this slot. {text}")
    if status in _BUSY:
        return GpuBusy(text, retry_after_seconds=retry_after_seconds(response, now=now))
    if _code(parsed) == "gpu_fault" or (status >= 500 and _is_gpu_fault(parsed, message_of(response))):
        return GpuFault(text)
    if status in _CREDENTIALS:
        return CredentialsRefused(f"{text}. {HEADERS_HINT}.")
    if status == _FORBIDDEN:
        return AccessForbidden(f"{text}. {HEADERS_HINT}.")
    if status in _LOST:
        return ServerLost(text)
    if 400 <= status < 500 and status not in _NOT_THE_INPUT:
        return _rejected(status, text, is_for_client=status in _FOR_THE_CLIENT and bool(_error_text(parsed)))
    return ServerFailed(text)


def describe_status(status: int) -> str:
    """An HTTP status as text for operators, with advice for 401, 403 and 407."""
    mends = status in _CREDENTIALS or status == _FORBIDDEN
    return f"{status}. {HEADERS_HINT}" if mends else str(status)


def failure_of(body: Mapping[str, Any]) -> GpuError:
    """The GpuError of a failed run that the server reports.

    body: with ``error_code`` (``gpu_fault``, ``bad_input``, ``output_not_stored`` or ``output_refused``), a
    text, and ``traceback``, which is stored with the attempt; all optional.
    """
    text = _error_text(body) or f"The server reports {body.get('status', 'error')} without a reason."
    trace = body.get("traceback")
    detail = trace[-MAX_TRACEBACK:] if isinstance(trace, str) else ""
    if _code(body) == "gpu_fault" or _is_gpu_fault(body, text):
        return GpuFault(text, detail=detail)
    kind: type[GpuError] = next((one for one in _REPORTED if one.code == _code(body)), RunFailed)
    return kind(text, detail=detail)


def _rejected(status: int, text: str, *, is_for_client: bool) -> BadInput:
    """BadInput whose message is safe for tenants; the detail is stored with the attempt."""
    if is_for_client:
        return BadInput(text)
    return BadInput(f"The GPU server rejected the request ({status}).", detail=text)


def retry_after_seconds(response: Response, *, now: datetime) -> float | None:
    """Seconds of the `Retry-After` header (RFC 9110, 10.2.3), or None if it is absent or unreadable.

    A date is compared with the answer's `Date` header if there is one, else with `now`.
    """
    text = response.headers.get("retry-after", "").strip()
    if text.isascii() and text.replace(".", "", 1).isdigit():
        return float(text)
    at, its_now = _date(text), _date(response.headers.get("date", ""))
    return None if at is None else max(0.0, (at - (its_now or now)).total_seconds())


def message_of(response: Response) -> str:
    """The error text of an answer, at most 500 characters."""
    text = _error_text(json_object(response))
    if text:
        return text
    text = response.body[: 4 * MAX_MESSAGE].decode("utf-8", "replace").replace("\0", "")
    return text.strip()[:MAX_MESSAGE] or "no reason given"


def _error_text(body: Mapping[str, Any]) -> str:
    for name in ("detail", "error", "message"):
        value = body.get(name)
        if isinstance(value, Mapping):
            value = value.get("message") or value
        if value:
            return (value if isinstance(value, str) else json.dumps(value))[:MAX_MESSAGE]
    return ""


def _is_gpu_fault(body: Mapping[str, Any], text: str) -> bool:
    """Whether the answer reports a GPU fault, by exception name or by an error text of a GPU library."""
    error = body.get("error")
    flat = {**body, **error} if isinstance(error, Mapping) else body
    names = (flat.get("type"), flat.get("error_type"))
    if any(isinstance(name, str) and name.rpartition(".")[2] in GPU_ERRORS for name in names):
        return True
    return is_sticky_fault_text(text) or is_out_of_memory_text(text)


def _code(body: Mapping[str, Any]) -> Any:
    return body.get("error_code") or body.get("code")


def json_object(response: Response) -> Mapping[str, Any]:
    """The body as a JSON object, or an empty one."""
    try:
        body = read_json(response.body)
    except Unreadable:
        return {}
    return body if isinstance(body, dict) else {}


def _date(text: str) -> datetime | None:
    try:
        at = parsedate_to_datetime(text)
    except (TypeError, ValueError, OverflowError):
        return None  # not a date, or out of range
    return at if at.tzinfo else at.replace(tzinfo=UTC)
