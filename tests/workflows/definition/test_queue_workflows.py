"""Definitions of queue_workflows: what they become, and what is noted."""

from __future__ import annotations

from typing import Any

import pytest

from dispatcher_client.workflow_simulation import Failure, simulate
from tests.support.queue_workflows import GREET_PIPELINE, PIPELINES, STREETVIEW, ask_step, node, steps
from workflows.definition.queue_workflows import Converted, NotConvertible, convert, pipeline_names
from workflows.definition.read import read_definition

GREET = {
    "name": "greet",
    "display_name": "greet — hello world",
    "mode": "node",
    "steps": [
        {
            "id": "greet",
            "kind": "pipeline",
            "pipeline": "greet",
            "inputs": {"name": {"$from": "parcel.label"}},
        }
    ],
}


def notes(found: Converted) -> list[tuple[str, str]]:
    return [(note.place, note.text) for note in found.notes]


def test_the_greeting_of_its_documentation() -> None:
    found = convert(GREET, PIPELINES)
    read_definition(found.definition)
    assert found.definition == {
        "name": "greet",
        "description": "greet — hello world",
        "inputs": {"type": "object"},
        "nodes": {
            "greet_greet": {
                "model": "greet",
                "payload": {"name": {"default": "world", "$ref": "inputs.parcel.label"}},
                "needs_rule": "none_failed",
            }
        },
        "output": {"greet": {"$ref": "greet_greet", "default": None}},
        "on_failure": {"running": "cancel"},
    }
    assert notes(found) == [
        ("greet/greet", "ran on the queue cpu: serve the model greet with a worker --gpu none")
    ]
    alone = convert(GREET_PIPELINE, {})
    read_definition(alone.definition)
    assert alone.definition["nodes"]["greet"]["payload"] == {
        "name": {"default": "world", "$ref": "inputs.name"}
    }


def test_the_two_stages_with_a_person_between_them() -> None:
    found = convert(STREETVIEW, PIPELINES)
    plan = read_definition(found.definition)
    assert list(plan.nodes) == [
        *("detect_sv_fetch", "detect_sv_detect", "detect_sv_annotate"),
        *("choose_best", "build_build_scene", "build_export_glb"),
    ]
    images = [
        {"kind": "image", "path": "pano_1"},
        {"kind": "text", "path": "pano_2"},
        {"kind": "image", "path": "x"},
    ]
    fakes = {
        "sv_fetch": lambda payload: {"image_path": f"{payload['area']}.jpg"},
        "sv_detect": lambda payload: payload,
        "sv_annotate": lambda payload: {"found": images},
        "choose_best": lambda asked: asked["choose_from"][-1],
        "build_scene": lambda payload: payload,
        "export_glb": lambda payload: {"glb": "g"},
    }
    run = simulate(found.definition, {"parcel": {"area": "k"}}, fakes)
    assert run.state == "completed"
    calls = dict(run.calls)
    assert calls["detect_sv_detect"] == {"image": "k.jpg"}
    assert calls["build_build_scene"] == {"image": images[0]}
    assert run.output["build"] == {"glb": "g"}
    assert ("detect/sv_detect", "got a path below the folder of sv_fetch: now its output") in notes(found)
    assert any("kept the model dino warm" in text for _, text in notes(found))


@pytest.mark.parametrize(
    ("skip_if", "picked", "state"),
    [
        ({"$from": "turn.path", "$ne": "a"}, "a", "completed"),
        ({"$from": "turn.path", "$ne": "a"}, "b", "skipped"),
        ({"$from": "turn.path", "$eq": "a"}, "a", "skipped"),
        ({"$from": "turn.path", "$eq": "a"}, "b", "completed"),
        ({"$from": "turn.path"}, "a", "skipped"),
        ({"$from": "nothing.there", "$ne": "a"}, "a", "completed"),
        ({"$from": "nothing.there", "$eq": "a"}, "a", "completed"),
        ({"$from": "nothing.there"}, "a", "completed"),
        ({"$value": True}, "a", "completed"),
    ],
)
def test_skip_if_becomes_the_opposite_condition(skip_if: Any, picked: str, state: str) -> None:
    """An unresolvable one does not skip, as there."""
    turn = ask_step("turn", target="path", options=[{"value": "a"}, {"value": "b"}])
    found = steps(turn, ask_step("next", depends_on=["turn"], skip_if=skip_if))
    read_definition(found.definition)
    fakes = {"turn": lambda asked: picked, "next": lambda asked: "a"}
    assert (
        simulate(found.definition, dict.fromkeys(found.definition["inputs"].get("required", ())), fakes)
        .nodes["next"]
        .state
        == state
    )


def test_lanes_converge_on_the_one_that_ran() -> None:
    lanes = [
        ask_step(
            f"{lane}_lane",
            depends_on=["turn"],
            target="x",
            skip_if={"$from": "turn.path", "$ne": lane},
            options=[{"value": f"from {lane}"}],
        )
        for lane in "ab"
    ]
    merge = {
        "id": "merge",
        "kind": "pipeline",
        "pipeline": "greet",
        "depends_on": ["a_lane", "b_lane"],
        "inputs": {"name": {"$coalesce": [{"$from": "a_lane.x"}, {"$from": "b_lane.x"}], "$default": "none"}},
    }
    turn = ask_step("turn", target="path", options=[{"value": "a"}, {"value": "b"}])
    found = steps(turn, *lanes, merge)
    read_definition(found.definition)
    fakes = {
        "turn": lambda asked: "b",
        "a_lane": lambda asked: "from a",
        "b_lane": lambda asked: "from b",
        "greet": lambda payload: payload,
    }
    run = simulate(found.definition, {}, fakes)
    assert run.nodes["a_lane"].state == "skipped"
    assert run.output["merge"] == {"name": "from b"}


def test_a_node_runs_also_if_all_that_it_needs_was_skipped() -> None:
    found = steps(
        ask_step("a", skip_if={"$from": "run.no"}),
        ask_step("b", depends_on=["a"]),
        ask_step("c", depends_on=["a"]),
    )
    run = simulate(found.definition, {"run": {"no": 1}}, {"b": lambda asked: "a", "c": lambda asked: "a"})
    assert [run.nodes[key].state for key in "abc"] == ["skipped", "completed", "completed"]


def test_a_failure_fails_the_run_and_cancels_the_rest() -> None:
    found = steps(ask_step("a"), ask_step("b", depends_on=["a"]))

    def fails(asked: Any) -> Any:
        raise Failure("no")

    run = simulate(found.definition, {}, {"a": fails})
    assert (run.state, run.nodes["b"].state) == ("failed", "cancelled")
    assert found.definition["on_failure"] == {"running": "cancel"}


def test_values_references_and_literals() -> None:
    given = {
        "id": "s",
        "kind": "pipeline",
        "pipeline": "all",
        "inputs": {
            "value": {"$value": {"$from": "data"}},
            "nested": {"deep": {"$from": "parcel.odd name"}},
            "listed": [{"$from": "not.resolved"}],
            "equal": {"$from": "parcel.kind", "$eq": "x"},
            "text": "plain",
        },
    }
    names = ("value", "nested", "listed", "equal", "text", "missing")
    pipeline = {
        "nodes": [
            node("first"),
            node(
                "last",
                "first",
                inputs=[
                    *({"name": name, "from": f"pipeline.{name}"} for name in names),
                    {"name": "ten", "from": "pipeline._implicit(10)"},
                    {"name": "folders", "from": "pipeline._siblings(['first', 'gone'])"},
                    {"name": "file", "from": "first.mask.png"},
                    {"name": "lost", "from": "gone.png"},
                ],
            ),
        ]
    }
    found = convert({"name": "w", "steps": [given]}, {"all": pipeline})
    read_definition(found.definition)
    assert found.definition["nodes"]["s_last"]["payload"] == {
        "value": {"$literal": {"$from": "data"}},
        "nested": {"deep": {"$ref": 'inputs.parcel."odd name"'}},
        "listed": {"$literal": [{"$from": "not.resolved"}]},
        "equal": {"$ref": 'inputs.parcel.kind == `"x"`'},
        "text": "plain",
        "ten": 10,
        "folders": [{"$ref": "s_first", "default": None}],
        "file": {"$ref": 's_first."mask.png"'},
    }
    texts = [text for place, text in notes(found) if place == "s/last"]
    assert len(texts) == len(set(texts))
    for part in (
        "references in a list were not resolved",
        "does not give missing",
        "got folders of sibling nodes",
        "no node gone in its pipeline",
    ):
        assert any(part in text for text in texts), part


@pytest.mark.parametrize(
    ("step", "note"),
    [
        (ask_step("a", colour=1), "the field colour has no counterpart"),
        (
            ask_step("a", widget="paint_mask"),
            "there is no widget paint_mask: a person answers with an artifact",
        ),
        (ask_step("a", widget="pick_or_upload", library="l"), "there is no library to pick from"),
        (ask_step("a", widget="choose_one", multiple=True), "let a person choose several: now one"),
        (ask_step("a", options=[{"value": "x", "label": "X"}]), "the options had labels"),
        (ask_step("a", skip_if={"$from": "x.y", "$eq": [1]}), "$eq with a list or an object"),
        (
            ask_step("a", widget="choose_one", source={"$from": "x", "$filter": {"p:matches": "a+b"}}),
            "the filter p:matches",
        ),
        ({"id": "p", "kind": "pause"}, "a step of the kind pause has no counterpart"),
    ],
)
def test_fields_without_a_counterpart_are_noted(step: dict[str, Any], note: str) -> None:
    found = steps(ask_step("first"), step)
    read_definition(found.definition)
    assert any(place == step["id"] and note in text for place, text in notes(found)), notes(found)


@pytest.mark.parametrize(
    ("document", "why"),
    [
        ({"nodes": "x"}, "no list of nodes"),
        ({}, "no list of steps"),
        ({"steps": []}, "neither pipeline nor input steps"),
        ({"steps": [{"kind": "input"}]}, "an id of its own"),
        ({"steps": [ask_step("a"), ask_step("a")]}, "an id of its own"),
        ({"steps": [{"id": "a", "kind": "pipeline", "pipeline": "x"}]}, "pipeline x is missing"),
        ({"steps": [ask_step("a", depends_on=["b"])]}, "depends on b"),
    ],
)
def test_a_document_of_another_format_is_refused(document: dict[str, Any], why: str) -> None:
    with pytest.raises(NotConvertible, match=why):
        convert(document, {})


def test_a_workflow_names_its_pipelines() -> None:
    assert pipeline_names(STREETVIEW) == ["detect", "reconstruct"]
