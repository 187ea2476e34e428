"""The workflow of the demo fleet: four images, of which a person picks one; then a 3D model, and a film."""

from __future__ import annotations

from typing import Any

NAME = "film"
SCHEDULE = "film-every-hour"
STYLES = ["photo", "watercolour", "pencil", "pixel art"]
INPUTS = {"prompt": "a fox in the snow"}
"""Of the runs that the schedule starts."""

DEFINITION: dict[str, Any] = {
    "name": "film",
    "description": "Four images, a choice, a 3D model, a film",
    "inputs": {
        "type": "object",
        "properties": {
            "prompt": {"type": "string", "maxLength": 1000},
            "styles": {"type": "array", "items": {"type": "string"}, "maxItems": 20},
        },
        "required": ["prompt"],
        "additionalProperties": False,
    },
    "nodes": {
        "images": {
            "map": {"over": {"$ref": "inputs.styles", "default": STYLES}, "max_parallel": 4},
            "model": "zimg",
            "payload": {
                "prompt": {"$ref": "inputs.prompt"},
                "style": {"$ref": "item"},
                "echo": {"$ref": "item"},
            },
        },
        "best": {
            "human": {
                "choose_from": {"$ref": "images[*].echo"},
                "title": "Which image becomes the film?",
                "expires_seconds": 86400,
            }
        },
        "mesh": {
            "model": "trellis",
            "payload": {"image": {"$ref": "best"}, "seconds": 1, "echo": {"$ref": "best"}},
        },
        "film": {
            "model": "ltx2",
            "payload": {
                "mesh": {"$ref": "mesh.echo"},
                "prompt": {"$ref": "inputs.prompt"},
                "seconds": 1,
                "echo": {"$ref": "mesh.echo"},
            },
        },
    },
    "output": {"image": {"$ref": "best"}, "film_of": {"$ref": "film.echo"}},
}
"""The demo's models return the `echo` of their payload. Not built by `dispatcher_client.Workflow`: its import
would take a tenth of a second of the start."""
