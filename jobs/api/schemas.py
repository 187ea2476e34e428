"""The bodies of the job routes, as JSON Schema 2020-12: published in OpenAPI and checked at the door."""

from __future__ import annotations

from django.conf import settings

from gpus.api import control_schemas as controls
from gpus.api import schemas as registry
from gpus.api.schemas import MAX_SECONDS, NAME, TIME, Schema, object_of
from jobs.api import bulk_schemas, key_schemas, tenant_schemas, worker_schemas
from jobs.domain.states import AttemptState, JobState
from jobs.reports.jobs import ATTEMPTS_SHOWN
from jobs.submission.outcomes import Outcome, WaitReason
from jobs.submission.request import MAX_TAG_LENGTH, MAX_TAGS, QUEUE, REJECT

_TIME_OR_NULL: Schema = {"type": ["string", "null"], "format": "date-time"}
_DEADLINE: Schema = {"type": ["number", "null"], "exclusiveMinimum": 0, "maximum": MAX_SECONDS}
_TEXT_OR_NULL: Schema = {"type": ["string", "null"]}


def submit() -> Schema:
    return {
        "type": "object",
        "additionalProperties": False,
        "required": ["model", "payload"],
        "properties": {
            "model": {**NAME, "description": "A registered model."},
            "payload": {"type": "object", "description": "What the GPU server gets, unchanged."},
            "callback_url": {
                "type": ["string", "null"],
                "maxLength": 2000,
                "description": "Is sent a signed POST (Standard Webhooks) when the job is over.",
            },
            "priority": {
                "type": ["integer", "boolean", "null"],
                "minimum": 1,
                "maximum": 9,
                "default": 5,
                "description": "1 first; true is 2.",
            },
            "deadline_seconds": {
                **_DEADLINE,
                "description": "The job fails if it is not over so long after it was accepted, or after "
                "`run_at`.",
            },
            "start_deadline_seconds": {
                **_DEADLINE,
                "description": "The job fails if it did not start by then; not after the deadline.",
            },
            "max_run_seconds": {
                **_DEADLINE,
                "description": "Longest run of one attempt; at most, and by default, the model's; at least "
                "the model's `min_run_seconds`.",
            },
            "run_at": {
                **_TIME_OR_NULL,
                "maxLength": 64,
                "description": "Not in line before this time; the deadlines count from it. A time with a "
                "zone, at most 366 days ahead; one that is less than a minute past means now.",
            },
            "if_busy": {
                "enum": [QUEUE, REJECT, None],
                "default": QUEUE,
                "description": "reject: where no slot is free now, the answer is 503 `busy` or "
                "`no_capacity` and nothing is stored.",
            },
            "max_retries": {
                "type": ["integer", "null"],
                "minimum": 0,
                "maximum": 100_000,
                "description": "At most the model's, which is the default.",
            },
            "tags": {
                "type": ["array", "null"],
                "maxItems": MAX_TAGS,
                "items": {"type": "string", "minLength": 1, "maxLength": MAX_TAG_LENGTH},
            },
            "metadata": {
                "type": ["object", "null"],
                "description": "Yours; comes back with the job. Up to 16 KB.",
            },
        },
    }


def batch_item() -> Schema:
    item = submit()
    item["properties"]["idempotency_key"] = {"type": ["string", "null"], **IDEMPOTENCY_KEY}
    return item


def batch() -> Schema:
    """What is published; `batch_envelope` and, per item, `batch_item` are what is checked."""
    return _batch({"$ref": "#/components/schemas/BatchItem"})


def batch_envelope() -> Schema:
    return _batch({})


def _batch(item: Schema) -> Schema:
    return {
        "type": "object",
        "additionalProperties": False,
        "required": ["jobs"],
        "properties": {
            "jobs": {
                "type": "array",
                "minItems": 1,
                "maxItems": settings.DISPATCHER.max_batch_jobs,
                "items": item,
            }
        },
    }


IDEMPOTENCY_KEY: Schema = {"minLength": 1, "maxLength": 255, "pattern": "^[\\x21-\\x7e]+$"}


def _attempt() -> Schema:
    return object_of(
        {
            "number": {"type": "integer"},
            "server": {"type": "string"},
            "slot": {"type": "integer"},
            "state": {"enum": [state.value for state in AttemptState]},
            "error": _error(),
            "slot_freed": {"type": "boolean", "description": "Its end proved the GPU free of it."},
            "evidence": {
                **_TEXT_OR_NULL,
                "description": "What proved it, then or later, where a proof was needed.",
            },
            "usage": {
                "type": ["object", "null"],
                "description": "What the server counted: `prompt_tokens`, `completion_tokens` …",
            },
            "started_at": TIME,
            "finished_at": _TIME_OR_NULL,
        }
    )


def _error() -> Schema:
    return {
        "type": ["object", "null"],
        "required": ["code", "message"],
        "properties": {"code": {"type": "string"}, "message": {"type": "string"}},
    }


def _summary_properties() -> Schema:
    return {
        "job_id": {"type": "string"},
        "model": {"type": "string"},
        "status": {"enum": [state.value for state in JobState]},
        "priority": {"type": "integer"},
        "tags": {"type": "array", "items": {"type": "string"}},
        "metadata": {"type": "object"},
        "created_at": TIME,
        "run_at": {**_TIME_OR_NULL, "description": "Of a job for later: when it stands in line."},
        "started_at": _TIME_OR_NULL,
        "finished_at": _TIME_OR_NULL,
        "deadline_at": {**_TIME_OR_NULL, "description": "When it must be over."},
        "start_deadline_at": {**_TIME_OR_NULL, "description": "When it must have started."},
        "queue_deadline_at": {
            **_TIME_OR_NULL,
            "description": "When it will have waited for `max_queued_seconds`; runs push it back.",
        },
        "cancel_requested_at": _TIME_OR_NULL,
        "error": {**_error(), "description": "Of a job that is not over: that of its last attempt."},
        "attempts": {
            "type": "array",
            "items": {"$ref": "#/components/schemas/Attempt"},
            "maxItems": ATTEMPTS_SHOWN,
            "description": "The last ones, by number; `attempts_before` of the job's URL reads earlier ones.",
        },
        "attempts_count": {"type": "integer", "description": "All that were made."},
        "refusals_folded": {
            "type": "integer",
            "description": "Of these, refused ones that are only counted any more: they cost no try.",
        },
        "urls": object_of({name: {"type": "string"} for name in ("self", "events", "cancel")}),
    }


def _submitted_properties() -> Schema:
    return {
        "outcome": {"enum": [outcome.value for outcome in Outcome]},
        "position": {"type": ["integer", "null"], "description": "Estimated place in line, from 1."},
        "wait_reason": {
            "enum": [*(reason.value for reason in WaitReason), None],
            "description": "Why it does not start at once; null where it does, or nobody knows why.",
        },
        "starts_in": _starts_in("null: it starts at once, is for later, or nobody can know when."),
    }


def _starts_in(description: str) -> Schema:
    starts = object_of(
        {
            "p50_seconds": {
                "type": "number",
                "description": "Half of such jobs start within so many seconds.",
            },
            "p90_seconds": {"type": "number", "description": "Nine in ten do."},
            "seen": {"type": "integer", "description": "Real starts that this was learnt from."},
        }
    )
    return {**starts, "type": ["object", "null"], "description": description}


def _stats() -> Schema:
    number = {"type": ["number", "null"]}
    counts = {"type": ["object", "null"], "additionalProperties": {"type": "integer"}}
    model = object_of(
        {
            "model": {"type": "string"},
            "pool": _TEXT_OR_NULL,
            "scheduled": {"type": "integer", "description": "For later: not in line yet."},
            "queued": {"type": "integer"},
            "oldest_queued_seconds": number,
            "queued_gpu_seconds": number,
            "running": {"type": "integer"},
            "retrying": {"type": "integer"},
            "cancelling": {
                "type": "integer",
                "description": "Cancelled, and it is not proven yet that their GPU is free.",
            },
            "slots": {**counts, "description": "Of the model's pool, by state; null: Redis is away."},
            "drain_seconds": {**number, "description": "Estimate: queued GPU-seconds over the pool's slots."},
        }
    )
    return object_of({"models": {"type": "array", "items": model}})


def _explanation_properties() -> Schema:
    reason = object_of(
        {
            "code": {"type": "string", "description": "Stable: see docs/explain.md."},
            "message": {"type": "string"},
            "change": {"type": "string", "description": "What would change it."},
            "evidence": {"type": "object", "description": "What it was decided by."},
        }
    )
    return {
        "reasons": {"type": "array", "items": reason, "minItems": 1},
        "position": {"type": ["integer", "null"], "description": "Estimated place in line, from 1."},
        "starts_in": _starts_in("null: it does not wait, or nobody can know."),
    }


def components() -> dict[str, Schema]:
    """All named schemas of the API."""
    any_json: Schema = {"description": "Any JSON value."}
    hidden = {"type": "boolean", "description": "Whoever asks may not see results."}
    job = {**_summary_properties(), "result": any_json, "result_hidden": hidden}
    return {
        "Problem": registry.problem(),
        "Register": registry.register_body(),
        "Registered": registry.registered(),
        "ModelConfigBody": registry.model_config_body(),
        "ModelConfig": registry.model_config(),
        "ModelConfigs": object_of(
            {"results": {"type": "array", "items": {"$ref": "#/components/schemas/ModelConfig"}}}
        ),
        **controls.components(),
        "Submit": submit(),
        "Batch": batch(),
        "BatchItem": batch_item(),
        "Attempt": _attempt(),
        "Job": object_of(job),
        "JobSummary": object_of(_summary_properties()),
        "JobPage": controls.page_of("JobSummary"),
        "Submitted": object_of({**job, **_submitted_properties()}),
        "SubmittedBatch": object_of(
            {
                "jobs": {
                    "type": "array",
                    "items": {
                        "anyOf": [
                            object_of({"job_id": {"type": "string"}, **_submitted_properties()}),
                            {"$ref": "#/components/schemas/Problem"},
                        ]
                    },
                }
            }
        ),
        "Cancelled": object_of(
            {
                "job_id": {"type": "string"},
                "outcome": {"enum": ["cancelled", "requested"]},
                "may_hold_slot_until": {
                    "type": ["string", "null"],
                    "format": "date-time",
                    "description": "Of a run that is being stopped: its slot is free by then, whatever its "
                    "server says.",
                },
            }
        ),
        "Explanation": object_of(
            {
                "job_id": {"type": "string"},
                "status": {"enum": [state.value for state in JobState]},
                **_explanation_properties(),
            }
        ),
        "Estimate": object_of(_explanation_properties()),
        "Stats": _stats(),
        "Pushed": {"type": "object", "description": "What the server would answer to a poll."},
        "Accepted": object_of({"accepted": {"type": "boolean"}}),
        **bulk_schemas.components(),
        **key_schemas.components(),
        **tenant_schemas.components(),
        **worker_schemas.components(),
    }
