"""The bodies of the routes about controls, machines and what they measure, as JSON Schema 2020-12."""

from __future__ import annotations

from gpus.api.schemas import NAME, TIME, Schema, object_of
from gpus.models import Pause
from gpus.protocol import CircuitKind, CircuitState, DesiredState
from gpus.registry.registry import MAX_SLOTS

DESIRED: Schema = {"enum": [state.value for state in DesiredState]}
LIVE: Schema = {"type": "boolean", "description": "False: Redis is away; it follows when it is back."}


def server_change() -> Schema:
    return {
        "type": "object",
        "additionalProperties": False,
        "minProperties": 1,
        "properties": {
            "desired": {
                **DESIRED,
                "description": "draining: what runs ends. off: what runs is stopped and waits again.",
            },
            "slots": {"type": "integer", "minimum": 0, "maximum": MAX_SLOTS},
        },
    }


def pause_body() -> Schema:
    return {
        "type": "object",
        "additionalProperties": False,
        "properties": {"reason": {"type": "string", "maxLength": 500, "default": ""}},
    }


def free_body() -> Schema:
    return {
        "type": "object",
        "additionalProperties": False,
        "properties": {"reason": {"type": "string", "maxLength": 500, "default": ""}},
    }


def revert_body() -> Schema:
    return {
        "type": "object",
        "additionalProperties": False,
        "required": ["number"],
        "properties": {"number": {"type": "integer", "minimum": 1, "maximum": 2**31 - 1}},
    }


def _server() -> Schema:
    text_or_null: Schema = {"type": ["string", "null"]}
    return object_of(
        {
            "server": NAME,
            "pool": NAME,
            "fleet": NAME,
            "slots": {"type": "integer"},
            "desired": {**DESIRED, "description": "What the operator wants."},
            "observed": {
                **object_of(
                    {
                        "state": {"enum": ["on", "draining", "off", "unknown"]},
                        "slots": {"type": "object", "additionalProperties": {"type": "integer"}},
                        "resting": {"type": "integer"},
                        "running": {"type": "integer"},
                        "circuit": {"enum": [state.value for state in CircuitState]},
                    }
                ),
                "description": "How it is: by its slots; unknown while Redis is away.",
            },
            "host": text_or_null,
            "machine": {**text_or_null, "description": "What it is part of, to be switched with."},
            "healthy": {
                "type": ["boolean", "null"],
                "description": "True: it answers and tells of no trouble. null: not asked yet.",
            },
            "tells_health": {
                "type": ["boolean", "null"],
                "description": "False: it answers and has no health endpoint. null: not known yet.",
            },
            "checked_at": {"type": ["string", "null"], "format": "date-time"},
            "last_error": {"type": "string"},
            "boot_id": {"type": "string"},
            "models": {
                "type": "array",
                "items": object_of(
                    {"model": NAME, "endpoint": {"type": "string"}, "paused": {"type": "boolean"}}
                ),
            },
            "live": LIVE,
        }
    )


def _quarantined() -> Schema:
    text_or_null: Schema = {"type": ["string", "null"]}
    return object_of(
        {
            "slot": {"type": "string", "description": "As in box-3/0."},
            "server": NAME,
            "reason": {"type": "string"},
            "model": {"type": "string"},
            "job_id": text_or_null,
            "attempt_id": text_or_null,
            "since": TIME,
            "until": {**TIME, "description": "Free at the latest: the model's run limit."},
            "probed_at": {**TIME, "type": ["string", "null"]},
            "tells_health": {
                "type": ["boolean", "null"],
                "description": "False: its server has no health endpoint, so only a restart proves it free.",
            },
        }
    )


def _slot_freed() -> Schema:
    return object_of(
        {
            "slot": {"type": "string"},
            "attempts": {
                "type": "array",
                "items": {"type": "string"},
                "description": "That may have been busy there.",
            },
            "live": LIVE,
        }
    )


def _pause() -> Schema:
    return object_of(
        {
            "kind": {"enum": [kind.value for kind in Pause.Kind]},
            "name": {"type": "string", "description": "Of the model or tenant; empty for the system."},
            "since": TIME,
            "by": {"type": "string"},
            "reason": {"type": "string"},
        }
    )


def _switched() -> Schema:
    return object_of(
        {
            "kind": {"enum": [kind.value for kind in Pause.Kind]},
            "name": {"type": "string"},
            "paused": {"type": "boolean"},
            "changed": {"type": "boolean", "description": "False: it was so already."},
            "live": LIVE,
        }
    )


def _circuit() -> Schema:
    return object_of(
        {
            "kind": {"enum": [kind.value for kind in CircuitKind]},
            "name": NAME,
            "pool": NAME,
            "state": {"enum": [state.value for state in CircuitState]},
            "failures": {"type": "integer", "description": "In a row, while it is closed."},
            "opened": {"type": "integer", "description": "Times in a row."},
            "left_seconds": {"type": "number", "description": "Until one job tries."},
        }
    )


def _version() -> Schema:
    return object_of(
        {
            "number": {"type": "integer"},
            "at": TIME,
            "by": {"type": "string"},
            "fields": {"type": "object", "description": "As GET of the model's configuration shows them."},
        }
    )


def _audit_entry() -> Schema:
    return object_of(
        {
            "id": {"type": "integer"},
            "at": TIME,
            "actor": {"type": "string", "description": "key:<prefix>, user:<name> or cli:<name>"},
            "action": {"type": "string"},
            "target": {"type": "string", "description": "kind:name, as in server:flux-1"},
            "detail": {"type": "object"},
        }
    )


def page_of(component: str) -> Schema:
    """One page of a list with a cursor."""
    url: Schema = {"type": ["string", "null"]}
    return object_of(
        {
            "next": {**url, "description": "URL of the following page."},
            "previous": url,
            "results": {"type": "array", "items": {"$ref": f"#/components/schemas/{component}"}},
        }
    )


_NUMBER: Schema = {"type": ["number", "null"]}
_COUNT: Schema = {"type": ["integer", "null"]}
_NAMES: Schema = {"type": "array", "items": NAME}


def machine_change() -> Schema:
    return {
        "type": "object",
        "additionalProperties": False,
        "required": ["desired"],
        "properties": {"desired": DESIRED},
    }


def _machine() -> Schema:
    return object_of(
        {
            "machine": NAME,
            "servers": {"type": "array", "items": {"$ref": "#/components/schemas/Server"}},
            "changed": {**_NAMES, "description": "Servers that were not so before."},
            "live": LIVE,
        }
    )


def _gpu() -> Schema:
    holder = object_of({"pid": {"type": "integer"}, "memory_mb": _NUMBER})
    event = object_of({"xid": {"type": "integer"}, "times": {"type": "integer"}})
    return object_of(
        {
            "utilisation_percent": _NUMBER,
            "memory_used_mb": _NUMBER,
            "memory_total_mb": _NUMBER,
            "temperature_celsius": _NUMBER,
            "power_watts": _NUMBER,
            "ecc_errors": {**_COUNT, "description": "Uncorrected, since the driver was loaded."},
            "throttled": {"type": "array", "items": {"type": "string"}, "description": "Why, if it is."},
            "xids": {
                "type": "array",
                "items": event,
                "description": "The driver's errors since the worker began.",
            },
            "processes": {"type": "array", "items": holder, "description": "Who holds its memory."},
        }
    )


def _sample() -> Schema:
    return object_of(
        {
            "age_seconds": {"type": "number", "description": "Since it was told, by Redis' clock."},
            "measured_at": {
                "type": ["string", "null"],
                "format": "date-time",
                "description": "By the worker's clock.",
            },
            "warm_models": {"type": "array", "items": {"type": "string"}, "description": "Those loaded."},
            "cpus": _COUNT,
            "cpu_percent": _NUMBER,
            "ram_used_mb": _NUMBER,
            "ram_total_mb": _NUMBER,
            "models_ram_mb": {**_NUMBER, "description": "Of the process that holds the models."},
            "gpu": {"anyOf": [_gpu(), {"type": "null"}], "description": "null: none, or it can't be read."},
            "gpu_error": {"type": "string", "description": "Why it can't be read."},
        }
    )


def components() -> dict[str, Schema]:
    """The controls' part of the API's named schemas."""
    return {
        "ServerChange": server_change(),
        "Server": _server(),
        "ServerPage": page_of("Server"),
        "PauseBody": pause_body(),
        "Pause": _pause(),
        "Pauses": object_of({"results": {"type": "array", "items": {"$ref": "#/components/schemas/Pause"}}}),
        "Switched": _switched(),
        "Circuits": object_of(
            {
                "results": {"type": "array", "items": _circuit()},
                "away": {
                    "type": "array",
                    "items": {"type": "string"},
                    "description": "Pools whose Redis does not answer.",
                },
            }
        ),
        "CircuitReset": object_of(
            {
                "kind": {"enum": [kind.value for kind in CircuitKind]},
                "name": NAME,
                "changed": {"type": "boolean", "description": "False: it was closed already."},
            }
        ),
        "FreeBody": free_body(),
        "Quarantine": object_of({"results": {"type": "array", "items": _quarantined()}}),
        "SlotFreed": _slot_freed(),
        "RevertBody": revert_body(),
        "ConfigVersion": _version(),
        "ConfigVersionPage": page_of("ConfigVersion"),
        "AuditEntry": _audit_entry(),
        "AuditPage": page_of("AuditEntry"),
        "MachineChange": machine_change(),
        "Machine": _machine(),
        "Telemetry": object_of(
            {
                "server": NAME,
                "machine": {"type": ["string", "null"]},
                "seconds": {"type": "integer"},
                "samples": {"type": "array", "items": _sample()},
            }
        ),
    }
