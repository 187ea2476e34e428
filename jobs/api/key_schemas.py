"""The bodies of the routes of keys and webhook secrets, as JSON Schema 2020-12."""

from __future__ import annotations

from gpus.api.schemas import NAME, TIME, Schema, object_of
from jobs.domain.scopes import Scope
from jobs.models import ApiKey
from jobs.operations.api_keys import MAX_OVERLAP_SECONDS, OVERLAP_SECONDS

_TIME_OR_NULL: Schema = {"type": ["string", "null"], "format": "date-time", "maxLength": 64}
_SCOPES: Schema = {
    "type": ["array", "null"],
    "minItems": 1,
    "maxItems": len(Scope),
    "items": {"enum": [scope.value for scope in Scope]},
    "description": "null: all that a key of its kind may. `operate` is an operator's.",
}
_MODELS: Schema = {
    "type": ["array", "null"],
    "maxItems": 1000,
    "items": NAME,
    "description": "Models it may submit to, of those its tenant may. null: all of them.",
}


def create_body() -> Schema:
    return {
        "type": "object",
        "additionalProperties": False,
        "properties": {
            "name": {"type": "string", "maxLength": 50, "description": "What it is for."},
            "kind": {"enum": [str(kind) for kind in ApiKey.Kind.values], "default": "tenant"},
            "scopes": _SCOPES,
            "allowed_models": _MODELS,
            "expires_at": _TIME_OR_NULL,
        },
    }


def overlap_body() -> Schema:
    return {
        "type": "object",
        "additionalProperties": False,
        "properties": {
            "overlap_seconds": {
                "type": "number",
                "minimum": 0,
                "maximum": MAX_OVERLAP_SECONDS,
                "default": OVERLAP_SECONDS,
                "description": "How long the old one goes on.",
            }
        },
    }


def _key() -> Schema:
    return {
        "prefix": {"type": "string", "description": "Its first part; it names the key."},
        "name": {"type": "string"},
        "tenant": NAME,
        "kind": {"enum": [str(kind) for kind in ApiKey.Kind.values]},
        "scopes": _SCOPES,
        "allowed_models": _MODELS,
        "created_at": TIME,
        "expires_at": _TIME_OR_NULL,
        "last_used_at": {**_TIME_OR_NULL, "description": "To the minute."},
        "revoked": {"type": "boolean"},
        "is_valid": {"type": "boolean", "description": "Neither revoked nor expired."},
        "rotated_to": {"type": ["string", "null"], "description": "The prefix of the key that replaced it."},
    }


def components() -> dict[str, Schema]:
    secret: Schema = {"type": "string", "description": "Shown only now."}
    return {
        "KeyBody": create_body(),
        "OverlapBody": overlap_body(),
        "ApiKey": object_of(_key()),
        "ApiKeys": object_of(
            {"results": {"type": "array", "items": {"$ref": "#/components/schemas/ApiKey"}}}
        ),
        "NewApiKey": object_of({**_key(), "key": secret}),
        "WebhookSecret": object_of(
            {
                "webhook_secret": secret,
                "old_until": {**_TIME_OR_NULL, "description": "Until then callbacks are signed with both."},
            }
        ),
    }
