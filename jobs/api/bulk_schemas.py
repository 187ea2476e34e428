"""The bodies of the routes that move waiting jobs and many jobs, as JSON Schema 2020-12."""

from __future__ import annotations

from foundation.http_api.parameters import text_schema
from gpus.api.schemas import Schema, object_of
from jobs.domain.states import JobState
from jobs.operations.bulk import AT_MOST
from jobs.operations.queue_position import FIRST_PRIORITY, LAST_PRIORITY

FINGERPRINT: Schema = {"type": "string", "pattern": "^[0-9a-f]{16}$"}
_TIME: Schema = {"type": "string", "format": "date-time", "maxLength": 64}
_COUNT: Schema = {"type": "integer", "minimum": 0}


def priority_body() -> Schema:
    priority = {"type": "integer", "minimum": FIRST_PRIORITY, "maximum": LAST_PRIORITY}
    return {
        "type": "object",
        "additionalProperties": False,
        "required": ["priority"],
        "properties": {"priority": {**priority, "description": "1 first."}},
    }


_DRY_RUN: Schema = {"type": "boolean", "default": False, "description": "Only count."}


def _dead_letter_filter() -> dict[str, Schema]:
    return {
        "model": text_schema(),
        "tenant": {**text_schema(), "description": "Its name."},
        "error_code": text_schema(),
        "fingerprint": {**FINGERPRINT, "description": "As `GET /admin/dlq/groups` shows it."},
    }


def retry_body() -> Schema:
    """What `retry-all` takes as parameters too."""
    properties = {**_dead_letter_filter(), "dry_run": _DRY_RUN}
    return {"type": "object", "additionalProperties": False, "properties": properties}


def bulk_body() -> Schema:
    """An empty filter is refused: nobody means every job by leaving something out."""
    return {
        "type": "object",
        "additionalProperties": False,
        "required": ["filter"],
        "properties": {
            "filter": {
                "type": "object",
                "additionalProperties": False,
                "minProperties": 1,
                "properties": {
                    **_dead_letter_filter(),
                    "state": {"enum": [state.value for state in JobState]},
                    "tag": text_schema(),
                    "created_after": _TIME,
                    "created_before": _TIME,
                    "server": {**text_schema(), "description": "One that an attempt of the job ran on."},
                },
            },
            "dry_run": _DRY_RUN,
        },
    }


def components() -> dict[str, Schema]:
    """This part of the API's named schemas."""
    group = {
        "fingerprint": FINGERPRINT,
        "error": object_of({"code": {"type": "string"}, "message": {"type": "string"}}),
        "job_id": {"type": "string", "description": "The one that failed last; the message is its."},
        "models": {"type": "object", "additionalProperties": _COUNT},
        "count": _COUNT,
        "first_at": _TIME,
        "last_at": _TIME,
    }
    return {
        "PriorityBody": priority_body(),
        "BulkBody": bulk_body(),
        "RetryBody": retry_body(),
        "BulkOutcome": object_of(
            {
                "done": {**_COUNT, "maximum": AT_MOST},
                "remaining": {**_COUNT, "description": "Match and are left: ask again for them."},
                "refused": {**_COUNT, "description": "Moved on before it came to them."},
                "dry_run": {"type": "boolean"},
            }
        ),
        "Retried": object_of(
            {
                "retried": {**_COUNT, "maximum": AT_MOST},
                "remaining": {**_COUNT, "description": "Failed jobs that match and are left: ask again."},
                "dry_run": {"type": "boolean"},
            }
        ),
        "DeadLetterGroups": object_of({"results": {"type": "array", "items": object_of(group)}}),
    }
