"""Schemas of what operators are shown of the dispatcher's processes."""

from __future__ import annotations

from gpus.api.schemas import TIME, Schema, object_of

_NAMES: Schema = {"type": "array", "items": {"type": "string"}}


def components() -> dict[str, Schema]:
    """The workers' part of the API's named schemas."""
    worker = {
        "name": {"type": "string", "description": "Of a GPU worker the one that its attempts have."},
        "kind": {"enum": ["gpu", "sweeps", "callbacks", "web"]},
        "live": {"type": "boolean", "description": "It gave a sign of life lately enough."},
        "last_beat_at": TIME,
        "last_beat_seconds": {"type": "number", "minimum": 0},
        "started_at": TIME,
        "layout": {"type": "integer", "description": "Of the keys in Redis that its code knows."},
        "queues": _NAMES | {"description": "What it consumes: gpu.<pool>, sweeps, callbacks."},
        "running": {"type": "integer", "minimum": 0, "description": "Its attempts that run now."},
        "servers": _NAMES | {"description": "Where they run."},
    }
    return {
        "Worker": object_of(worker),
        "Workers": object_of(
            {"results": {"type": "array", "items": {"$ref": "#/components/schemas/Worker"}}}
        ),
    }
