"""The bodies of the registry's routes, as JSON Schema 2020-12: published and checked at the door."""

from __future__ import annotations

from typing import Any

from foundation.names import NAME_PATTERN
from gpus.health.first_look import NO_HEALTH, UNHEALTHY, UNREACHABLE
from gpus.registry.model_fields import defaults
from gpus.registry.registry import MAX_SLOTS
from gpus.runners.registry import runner_names

Schema = dict[str, Any]
MAX_SECONDS = 31_536_000
"""A year; longer is a mistake in the unit."""

TIME: Schema = {"type": "string", "format": "date-time"}
NAME: Schema = {"type": "string", "pattern": NAME_PATTERN, "maxLength": 64}
_SECONDS: Schema = {"type": "number", "exclusiveMinimum": 0, "maximum": MAX_SECONDS}
_TEMPLATE: Schema = {
    "type": ["string", "null"],
    "minLength": 1,
    "maxLength": 500,
    "description": "A path on the server's host, or a whole URL.",
}

_MODEL_PROPERTIES: Schema = {
    "model_type": {
        "enum": runner_names(),
        "description": "The protocol of its servers: our own (sync, async), openai, ollama or cog.",
    },
    "poll_endpoint_template": {
        **_TEMPLATE,
        "description": "Where to poll, as in /status/{id}; async needs it.",
    },
    "id_field": {"type": ["string", "null"], "minLength": 1, "maxLength": 100},
    "poll_interval": _SECONDS,
    "max_poll_time": _SECONDS,
    "max_retries": {"type": "integer", "minimum": 0, "maximum": 100_000},
    "max_run_seconds": {**_SECONDS, "type": ["number", "null"]},
    "min_run_seconds": {
        "type": ["number", "null"],
        "minimum": 0,
        "maximum": MAX_SECONDS,
        "description": "The shortest max_run_seconds that a job may set. null: DISPATCHER_MIN_RUN_SECONDS.",
    },
    "at_most_once": {"type": "boolean"},
    "payload_schema": {
        "type": ["object", "boolean", "null"],
        "description": "A JSON Schema (2020-12) that every payload must satisfy.",
    },
    "cancel_endpoint_template": _TEMPLATE,
    "max_response_bytes": {"type": "integer", "minimum": 1, "maximum": 1024**3},
    "max_queued": {
        "type": ["integer", "null"],
        "minimum": 1,
        "maximum": 2_000_000_000,
        "description": "Jobs that may wait for it, of all tenants; more are refused (429). null: no limit.",
    },
    "max_queued_seconds": {
        "type": ["number", "null"],
        "minimum": 0.001,
        "maximum": MAX_SECONDS,
        "description": "How long a job may wait for it in all; then it fails with max_queued_exceeded. "
        "null: DISPATCHER_MAX_QUEUED_SECONDS.",
    },
    "remote_model": {
        "type": ["string", "null"],
        "minLength": 1,
        "maxLength": 200,
        "pattern": r"^[^\x00-\x1f]*$",
        "description": "openai, ollama: what the servers call it. null: its own name.",
    },
    "keep_alive_seconds": {
        "type": ["number", "null"],
        "minimum": -1,
        "maximum": MAX_SECONDS,
        "description": "ollama: how long it stays loaded after a run; -1: for ever. null: as it says.",
    },
    "health_path": {
        "type": ["string", "null"],
        "minLength": 1,
        "maxLength": 200,
        "description": "sync, async: where its servers are asked for their health, as in /healthz; it must "
        "answer 200. null: /health, which a server may lack.",
    },
    "queue_algorithm": {
        "enum": ["fair", "fifo"],
        "description": "Of the model's pool: all its models share it.",
    },
    "affinity_patience_seconds": {"type": "number", "minimum": 0, "maximum": MAX_SECONDS},
}


def object_of(properties: Schema) -> Schema:
    """All of them are there."""
    return {"type": "object", "required": list(properties), "properties": properties}


def model_config_body() -> Schema:
    """PUT and PATCH. `model`, `pool` and `fleet` may be repeated as GET showed them."""
    values = defaults()
    return {
        "type": "object",
        "additionalProperties": False,
        "properties": {
            "model": NAME,
            "pool": NAME,
            "fleet": NAME,
            **{name: {**schema, "default": values[name]} for name, schema in _MODEL_PROPERTIES.items()},
        },
    }


def register_body() -> Schema:
    return {
        "type": "object",
        "additionalProperties": False,
        "required": ["model", "server", "endpoint", "slots"],
        "properties": {
            "model": NAME,
            "server": NAME,
            "endpoint": {
                "type": "string",
                "minLength": 1,
                "maxLength": 500,
                "description": "http(s) URL to POST to.",
            },
            "slots": {"type": "integer", "minimum": 1, "maximum": MAX_SLOTS},
            "pool": {**NAME, "description": "Default: a pool of the model's own, named after it."},
            "fleet": {**NAME, "description": "Default: main."},
            "host": {
                "type": ["string", "null"],
                "maxLength": 200,
                "description": "Only the worker on this host drives it.",
            },
            "machine": {**NAME, "description": "What it is part of: its servers are switched in one go."},
            "headers": {
                "type": ["object", "null"],
                "description": "Secret request headers; stored encrypted, never shown.",
                "maxProperties": 50,
                "propertyNames": {"pattern": "^[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}$"},
                "additionalProperties": {
                    "type": "string",
                    "maxLength": 8000,
                    "pattern": "^[\\t\\x20-\\x7e]*$",
                },
            },
            "ca_pem": {"type": ["string", "null"], "maxLength": 100_000},
            **_MODEL_PROPERTIES,
        },
    }


def model_config() -> Schema:
    """What GET shows."""
    properties = model_config_body()["properties"]
    return {"type": "object", "required": sorted(properties), "properties": properties}


def registered() -> Schema:
    return object_of(
        {
            "server": NAME,
            "model": NAME,
            "pool": NAME,
            "fleet": NAME,
            "endpoint": {"type": "string"},
            "slots": {"type": "integer"},
            "desired": {"enum": ["on", "draining", "off"]},
            "host": {"type": ["string", "null"]},
            "machine": {"type": ["string", "null"]},
            "live": {"type": "boolean", "description": "False: Redis is away; it follows when it is back."},
            "warnings": {
                "type": "array",
                "description": "What the operator should know before the first job.",
                "items": object_of(
                    {
                        "code": {"enum": [NO_HEALTH, UNREACHABLE, UNHEALTHY]},
                        "detail": {"type": "string"},
                    }
                ),
            },
        }
    )


def problem() -> Schema:
    return {
        "type": "object",
        "required": ["type", "title", "status", "code", "detail", "retryable"],
        "properties": {
            "type": {"type": "string"},
            "title": {"type": "string"},
            "status": {"type": "integer"},
            "code": {"type": "string", "description": "Stable: see docs/api_errors.md."},
            "detail": {"type": "string"},
            "retryable": {"type": "boolean"},
            "retry_after_seconds": {
                "type": "integer",
                "description": "When to try again; as the Retry-After header.",
            },
            "errors": {
                "type": "array",
                "items": {
                    "type": "object",
                    "required": ["pointer", "in", "code", "detail"],
                    "properties": {
                        "pointer": {"type": "string"},
                        "in": {"enum": ["body", "query", "path", "header"]},
                        "code": {"type": "string"},
                        "detail": {"type": "string"},
                    },
                },
            },
        },
    }
