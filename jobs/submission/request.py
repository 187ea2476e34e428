"""What a client asks for, as a value."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from django.utils.dateparse import parse_datetime

from foundation.json_text import canonical_json

HIGHEST, DEFAULT_PRIORITY, LOWEST = 1, 5, 9
PRIORITY_OF_TRUE = 2


def read_priority(value: int | bool | None) -> int:
    """1..9, 1 first; ``true`` (the founding API's flag) is 2, ``false`` and nothing are 5."""
    if value is None or value is False:
        return DEFAULT_PRIORITY
    if value is True:
        return PRIORITY_OF_TRUE
    if not HIGHEST <= value <= LOWEST:
        raise ValueError(f"priority is a number from {HIGHEST} to {LOWEST}, or a boolean")
    return value


QUEUE, REJECT = "queue", "reject"
MAX_TAGS, MAX_TAG_LENGTH = 20, 64
MAX_METADATA_BYTES = 16 * 1024
NO_TIME = "Must be a time with a zone, as in 2026-02-01T12:00:00Z."
"""What `read_time` could not read."""


@dataclass(frozen=True, slots=True)
class SubmitRequest:
    """One job to be made. fingerprint: equal bodies have equal ones; used with `idempotency_key` only.

    max_retries, max_run_seconds: None for the model's own. run_at: not before; None: now. reject_if_busy: the
    job is refused unless a slot is free for it now.
    """

    model: str
    payload: Any
    callback_url: str = ""
    priority: int = DEFAULT_PRIORITY
    deadline_seconds: float | None = None
    start_deadline_seconds: float | None = None
    max_retries: int | None = None
    max_run_seconds: float | None = None
    run_at: datetime | None = None
    reject_if_busy: bool = False
    tags: tuple[str, ...] = ()
    metadata: Mapping[str, Any] = field(default_factory=dict)
    idempotency_key: str | None = None
    fingerprint: str = ""


def read_request(body: Mapping[str, Any], *, idempotency_key: str | None = None) -> SubmitRequest:
    """From a body whose form was checked already. idempotency_key: the header's; it beats the body's own."""
    own = {name: value for name, value in body.items() if name != "idempotency_key"}
    key = idempotency_key or body.get("idempotency_key")
    retries = body.get("max_retries")
    return SubmitRequest(
        model=body["model"],
        payload=body["payload"],
        callback_url=body.get("callback_url") or "",
        priority=read_priority(_whole(body.get("priority"))),
        deadline_seconds=body.get("deadline_seconds"),
        start_deadline_seconds=body.get("start_deadline_seconds"),
        max_retries=None if retries is None else int(retries),
        max_run_seconds=body.get("max_run_seconds"),
        run_at=read_time(body["run_at"]) if body.get("run_at") else None,
        reject_if_busy=body.get("if_busy") == REJECT,
        tags=tuple(dict.fromkeys(body.get("tags") or ())),
        metadata=body.get("metadata") or {},
        idempotency_key=key,
        fingerprint=fingerprint(own) if key else "",
    )


def read_time(text: str) -> datetime | None:
    """In UTC; None for what is no time with a zone, or lies beyond the calendar."""
    try:
        parsed = parse_datetime(text)
        if parsed is None or parsed.tzinfo is None:
            return None
        return parsed.astimezone(UTC)
    except (ValueError, OverflowError):
        return None


def fingerprint(body: Any) -> str:
    """SHA-256 of the canonical text."""
    return hashlib.sha256(canonical_json(body).encode()).hexdigest()


def _whole(value: Any) -> Any:
    """JSON knows one kind of number: 5.0 is a 5."""
    return int(value) if isinstance(value, float) else value
