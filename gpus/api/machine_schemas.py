"""The bodies of the routes about machines and what they measure, as JSON Schema 2020-12."""

from __future__ import annotations

from gpus.api.control_schemas import DESIRED, LIVE
from gpus.api.schemas import NAME, Schema, object_of

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
    """Their part of the API's named schemas."""
    return {
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
