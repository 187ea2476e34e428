"""Pipelines of the queue_workflows package."""

from __future__ import annotations

from typing import Any

from workflows.definition.queue_workflows import Converted, convert

GREET_PIPELINE = {
    "name": "greet",
    "display_name": "greet · hello world",
    "requires_gpu": False,
    "inputs": {
        "type": "object",
        "properties": {"name": {"type": "string", "default": "world", "maxLength": 64}},
    },
    "outputs": {"primary_file": {"type": "file", "mime": "text/plain"}, "summary_keys": ["greeted"]},
    "nodes": [
        {
            "id": "greet",
            "node": "greet",
            "depends_on": [],
            "inputs": [{"name": "name", "from": "pipeline.name"}],
            "outputs": [{"name": "hello.txt", "kind": "text"}],
            "gpu": False,
        }
    ],
}


def node(name: str, *needs: str, **more: Any) -> dict[str, Any]:
    return {"id": name, "node": name, "gpu": True, "depends_on": list(needs), "inputs": [], **more}


DETECT = {
    "name": "detect",
    "nodes": [
        node("sv_fetch", gpu=False, inputs=[{"name": "area", "from": "pipeline.area"}]),
        node(
            "sv_detect", "sv_fetch", model="dino", inputs=[{"name": "image", "from": "sv_fetch.image_path"}]
        ),
        node("sv_annotate", "sv_detect", gpu=False),
    ],
}


RECONSTRUCT = {
    "name": "reconstruct",
    "nodes": [
        node("build_scene", inputs=[{"name": "image", "from": "pipeline.image"}]),
        node("export_glb", "build_scene", gpu=False),
    ],
}


STREETVIEW = {
    "name": "streetview_inspect",
    "mode": "node",
    "steps": [
        {
            "id": "detect",
            "kind": "pipeline",
            "pipeline": "detect",
            "inputs": {"area": {"$from": "parcel.area"}},
        },
        {
            "id": "choose_best",
            "kind": "input",
            "widget": "choose_one",
            "target": "selection",
            "prompt": "Choose one detection",
            "depends_on": ["detect"],
            "source": {"$from": "detect.found", "$filter": {"kind:eq": "image", "path:matches": "pano_"}},
        },
        {
            "id": "build",
            "kind": "pipeline",
            "pipeline": "reconstruct",
            "depends_on": ["choose_best"],
            "inputs": {"image": {"$from": "choose_best.selection"}},
        },
    ],
}


PIPELINES = {"detect": DETECT, "reconstruct": RECONSTRUCT, "greet": GREET_PIPELINE}


def steps(*found: dict[str, Any]) -> Converted:
    return convert({"name": "w", "steps": list(found)}, PIPELINES)


def ask_step(step_id: str, **more: Any) -> dict[str, Any]:
    return {"id": step_id, "kind": "input", "widget": "turnout", "options": [{"value": "a"}], **more}
