"""Definitions: which are accepted, and the place and code of each error."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from foundation.http_api.problems import Problem
from tests.support.definitions import errors_of, nodes
from workflows.definition.limits import definition_limits
from workflows.definition.outside import Outside
from workflows.definition.read import read_definition
from workflows.domain.plan import NeedsRule, NodeKind

A_MODEL = {"model": "zimg"}
FILM = {
    "name": "film",
    "inputs": {"type": "object", "required": ["prompt"]},
    "nodes": {
        "film": {"model": "video", "payload": {"mesh": {"$ref": "mesh.url"}}},
        "mesh": {"model": "trellis", "when": "best != `null`", "payload": {"image": {"$ref": "best"}}},
        "best": {
            "human": {
                "title": "Choose one",
                "choose_from": {"$ref": "images[*].url"},
                "expires_seconds": 86400,
                "on_expiry": "skip",
            }
        },
        "images": {
            "map": {"count": 4, "max_parallel": 2, "fail_at": 0.5},
            "model": "zimg",
            "payload": {"prompt": {"$ref": "inputs.prompt"}, "seed": {"$ref": "index"}},
        },
        "mail": {"model": "notify", "payload": {"why": {"$ref": "error.message"}}},
    },
    "output": {"film": {"$ref": "film.url"}},
    "on_failure": {"running": "finish", "node": "mail"},
}


def test_nodes_are_ordered_by_what_they_reference() -> None:
    plan = read_definition(FILM)
    assert list(plan.nodes) == ["images", "best", "mesh", "film"]
    assert plan.nodes["best"].needs == {"images"}
    assert plan.nodes["best"].kind is NodeKind.HUMAN
    assert plan.nodes["film"].rule is NeedsRule.ALL_SUCCESS
    assert plan.on_failure is not None
    assert plan.on_failure.key == "mail"
    models = [node.options["model"] for node in plan.all_nodes if node.kind is NodeKind.MODEL]
    assert sorted(models) == ["notify", "trellis", "video", "zimg"]


@pytest.mark.parametrize(
    ("value", "pointer", "code"),
    [
        ([], "", "wrong_type"),
        ({}, "/nodes", "required"),
        ({"nodes": {}}, "/nodes", "too_few"),
        (nodes(**{"Bad-name": A_MODEL}), "/nodes/Bad-name", "invalid"),
        (nodes(item=A_MODEL), "/nodes/item", "reserved_name"),
        (nodes(a={}), "/nodes/a", "invalid"),
        (nodes(a={"model": "m", "workflow": "w"}), "/nodes/a", "invalid"),
        (nodes(a={"model": "m", "colour": 1}), "/nodes/a/colour", "unknown_field"),
        (nodes(a={"model": "m", "inputs": {}}), "/nodes/a/inputs", "not_allowed"),
        (nodes(a={"timer": {"seconds": 1}, "payload": {}}), "/nodes/a/payload", "not_allowed"),
        (nodes(a={**A_MODEL, "needs": ["b"]}), "/nodes/a/needs/0", "unknown_node"),
        (nodes(a={**A_MODEL, "needs": ["a"]}), "/nodes/a", "cycle"),
        (nodes(a={**A_MODEL, "payload": [{"x": {"$ref": "b.c"}}]}), "/nodes/a/payload/0/x", "unknown_ref"),
        (nodes(a={**A_MODEL, "payload": {"$ref": "item"}}), "/nodes/a/payload", "unknown_ref"),
        (nodes(a={**A_MODEL, "payload": {"$ref": "error"}}), "/nodes/a/payload", "unknown_ref"),
        (nodes(a={**A_MODEL, "payload": {"$ref": "@"}}), "/nodes/a/payload/$ref", "invalid_expression"),
        (nodes(a={**A_MODEL, "payload": {"$ref": 1}}), "/nodes/a/payload/$ref", "invalid_expression"),
        (
            nodes(a={**A_MODEL, "payload": {"$ref": "x[?" * 300}}),
            "/nodes/a/payload/$ref",
            "invalid_expression",
        ),
        (
            nodes(a={**A_MODEL, "payload": {"$ref": "inputs", "else": 1}}),
            "/nodes/a/payload",
            "invalid_expression",
        ),
        (nodes(a={**A_MODEL, "payload": {"$from": "x"}}), "/nodes/a/payload", "invalid_expression"),
        (nodes(a={**A_MODEL, "when": "[a, b]"}), "/nodes/a/when", "invalid_expression"),
        (nodes(a={**A_MODEL, "when": "b.ok"}), "/nodes/a/when", "unknown_ref"),
        (nodes(a={**A_MODEL, "map": {"over": {"$ref": "item"}}}), "/nodes/a/map/over", "unknown_ref"),
        (nodes(a={**A_MODEL, "map": {}}), "/nodes/a/map", "invalid"),
        (nodes(a={**A_MODEL, "map": {"count": 1, "fail_at": 0}}), "/nodes/a/map/fail_at", "out_of_range"),
        (nodes(a={**A_MODEL, "map": {"count": 1, "fail_at": 1.5}}), "/nodes/a/map/fail_at", "out_of_range"),
        (nodes(a={**A_MODEL, "map": {"count": 1, "fail_at": True}}), "/nodes/a/map/fail_at", "wrong_type"),
        (nodes(a={"human": {"title": "?"}}), "/nodes/a/human", "invalid"),
        (
            nodes(a={"human": {"title": "?", "form": {"type": 3}}}),
            "/nodes/a/human/form/type",
            "invalid_schema",
        ),
        (
            nodes(a={"human": {"title": "?", "form": {}, "on_expiry": "skip"}}),
            "/nodes/a/human/on_expiry",
            "invalid",
        ),
        (nodes(a={"signal": {"name": "s", "default": 1}}), "/nodes/a/signal/default", "invalid"),
        (nodes(a={"timer": {}}), "/nodes/a/timer", "invalid"),
        ({**nodes(a=A_MODEL), "output": {"x": {"$ref": "b"}}}, "/output/x", "unknown_ref"),
        ({**nodes(a=A_MODEL), "on_failure": {"node": "b"}}, "/on_failure/node", "unknown_node"),
        (
            {**nodes(a=A_MODEL, b={**A_MODEL, "needs": ["a"]}), "on_failure": {"node": "b"}},
            "/nodes/b",
            "not_allowed",
        ),
        (
            {**nodes(a={**A_MODEL, "needs": ["b"]}, b=A_MODEL), "on_failure": {"node": "b"}},
            "/nodes/a",
            "not_allowed",
        ),
        ({**nodes(a=A_MODEL), "inputs": {"$ref": "http://127.0.0.1/x"}}, "/inputs", "invalid_schema"),
        (nodes(a={**A_MODEL, "near": "a"}), "/nodes/a/near", "invalid"),
        (nodes(a={**A_MODEL, "near": "b"}), "/nodes/a/near", "unknown_node"),
        (nodes(a=A_MODEL, b={**A_MODEL, "near": "a"}), "/nodes/b/near", "invalid"),
        (
            nodes(a={"timer": {"seconds": 1}}, b={**A_MODEL, "needs": ["a"], "near": "a"}),
            "/nodes/b/near",
            "invalid",
        ),
        (
            nodes(a={**A_MODEL, "map": {"count": 2}}, b={**A_MODEL, "needs": ["a"], "near": "a"}),
            "/nodes/b/near",
            "invalid",
        ),
        (nodes(a={"timer": {"seconds": 1}, "near": "b"}), "/nodes/a/near", "not_allowed"),
    ],
)
def test_each_error_has_its_place_and_code(value: Any, pointer: str, code: str) -> None:
    assert (pointer, code) in errors_of(value)


def test_a_cycle_is_named() -> None:
    value = nodes(
        a={**A_MODEL, "needs": ["c"]}, b={**A_MODEL, "payload": {"$ref": "a"}}, c={**A_MODEL, "when": "b"}
    )
    with pytest.raises(Problem) as refused:
        read_definition(value)
    (error,) = refused.value.errors
    assert error.code == "cycle"
    assert {"a", "b", "c"} == set(error.detail.removesuffix(".").split(": ")[1].split(" → "))


def test_a_node_may_be_near_any_node_before_it() -> None:
    value = nodes(
        a={**A_MODEL, "map": {"count": 2}},
        b={**A_MODEL, "needs": ["a"]},
        c={**A_MODEL, "needs": ["b"], "near": "b"},
        d={**A_MODEL, "needs": ["c"], "near": "b"},
        e={**A_MODEL, "needs": ["d"], "near": "a", "map": {"count": 2}},
        last={**A_MODEL, "near": "b"},
    )
    plan = read_definition({**value, "on_failure": {"node": "last"}})
    assert plan.nodes["d"].options["near"] == "b"


def test_all_errors_are_reported_at_once() -> None:
    value = nodes(a={**A_MODEL, "payload": {"$ref": "x"}, "when": "y", "needs": ["z"]}, b={})
    assert len(errors_of(value)) == 4


def test_an_unknown_model_is_refused() -> None:
    class Nothing(Outside):
        def has_model(self, name: str) -> bool:
            return False

    assert errors_of(nodes(a=A_MODEL), outside=Nothing()) == [("/nodes/a/model", "unknown_model")]
    with pytest.raises(Problem) as refused:
        read_definition(nodes(a=A_MODEL), outside=Nothing())
    assert "`GET /api/v1/me` lists the models" in refused.value.errors[0].detail


def test_a_definition_over_a_limit_is_refused_with_the_limit() -> None:
    big = nodes(a={**A_MODEL, "payload": {"x": "y" * 2000}})
    limits = definition_limits()
    assert errors_of(big, limits=replace(limits, max_bytes=1000)) == [("", "too_large")]
    many = nodes(**{f"n{number}": A_MODEL for number in range(11)})
    assert errors_of(many, limits=replace(limits, nodes=10)) == [("/nodes", "too_many")]


def test_a_json_schema_keeps_its_own_references() -> None:
    form = {"$defs": {"name": {"type": "string"}}, "$ref": "#/$defs/name"}
    plan = read_definition(nodes(a={"human": {"title": "Name?", "form": form}}))
    assert plan.nodes["a"].options["form"] == form


def test_an_artifact_in_a_payload_is_data() -> None:
    payload = {"image": {"$artifact": "0190"}}
    assert read_definition(nodes(a={**A_MODEL, "payload": payload})).nodes["a"].settings == {
        "payload": payload
    }
