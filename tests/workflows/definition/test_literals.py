"""Literal values that a definition can't be stored with, because a node would always fail with them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from foundation.expressions import ExpressionLimits
from foundation.http_api.problems import Problem
from tests.support.definitions import errors_of, nodes
from workflows.definition.limits import Limits, definition_limits
from workflows.definition.read import read_definition

A_REF = {"$ref": "inputs.x"}
EXPIRES = {"expires_seconds": 60, "on_expiry": "default"}


def model(**fields: Any) -> dict[str, Any]:
    return nodes(a={"model": "m", **fields})


def ask(**fields: Any) -> dict[str, Any]:
    return nodes(a={"human": {"title": "?", **fields}})


def signal(**fields: Any) -> dict[str, Any]:
    return nodes(a={"signal": {"name": "s", **fields}})


def timer(**fields: Any) -> dict[str, Any]:
    return nodes(a={"timer": fields})


@pytest.mark.parametrize(
    ("value", "pointer", "code"),
    [
        (ask(choose_from=[]), "human/choose_from", "no_choices"),
        (ask(choose_from="red"), "human/choose_from", "no_choices"),
        (ask(choose_from={"x": A_REF}), "human/choose_from", "no_choices"),
        (ask(choose_from={"$literal": {"$ref": "x"}}), "human/choose_from", "no_choices"),
        (ask(choose_from=list(range(10_001))), "human/choose_from", "too_many_choices"),
        (ask(choose_from=["a"], default="b", **EXPIRES), "human/default", "answer_invalid"),
        (ask(choose_from=[1], default=True, **EXPIRES), "human/default", "answer_invalid"),
        (ask(form={}, expires_seconds=1e9), "human/expires_seconds", "out_of_range"),
        (ask(form={}, default={"x": [A_REF]}, **EXPIRES), "human/default/x/0", "invalid_expression"),
        (ask(form={}, title="x" * 1_001), "human/title", "too_long"),
        (signal(expires_seconds=1e9), "signal/expires_seconds", "out_of_range"),
        (timer(seconds=-5), "timer/seconds", "invalid_timer"),
        (timer(seconds=1e12), "timer/seconds", "invalid_timer"),
        (timer(seconds="5"), "timer/seconds", "invalid_timer"),
        (timer(seconds=True), "timer/seconds", "invalid_timer"),
        (timer(seconds=[A_REF]), "timer/seconds", "invalid_timer"),
        (timer(until="tomorrow"), "timer/until", "invalid_timer"),
        (timer(until="9999-12-31T00:00:00Z"), "timer/until", "invalid_timer"),
        (nodes(a={"workflow": "w", "version": 1e300}), "version", "out_of_range"),
        (nodes(a={"workflow": "w", "version": 2**31}), "version", "out_of_range"),
        (timer(until="2026-02-01T12:00:00"), "timer/until", "invalid_timer"),
        (timer(until=1), "timer/until", "invalid_timer"),
        (model(map={"count": -1}), "map/count", "not_a_count"),
        (model(map={"count": 4.5}), "map/count", "not_a_count"),
        (model(map={"count": True}), "map/count", "not_a_count"),
        (model(map={"count": "4"}), "map/count", "not_a_count"),
        (model(map={"count": [A_REF]}), "map/count", "not_a_count"),
        (model(map={"count": 100_001}), "map/count", "too_many_items"),
        (model(map={"count": 1e300}), "map/count", "too_many_items"),
        (model(map={"over": 7}), "map/over", "not_a_list"),
        (model(map={"over": {"$artifact": "x", "y": 1}}), "map/over", "not_a_list"),
        (model(map={"over": {"x": A_REF}}), "map/over", "not_a_list"),
        (model(map={"over": {"$artifact": 5}}), "map/over", "not_a_list"),
        (model(map={"over": [0] * 100_001}), "map/over", "too_many_items"),
        (model(map={"count": 1, "max_parallel": 10_001}), "map/max_parallel", "out_of_range"),
        (model(payload=5), "payload", "payload_invalid"),
        (model(payload=[A_REF]), "payload", "payload_invalid"),
        (model(payload={"$literal": None}), "payload", "payload_invalid"),
        (model(payload={"x": {"$literal": 1, "y": 2}}), "payload/x", "invalid_expression"),
        (model(payload={"$ref": "inputs", "default": A_REF}), "payload/default", "invalid_expression"),
        (model(payload={"x": {"$ref": "inputs", "y": 1}}), "payload/x", "invalid_expression"),
        (model(cache={"ttl_seconds": 1e9}), "cache/ttl_seconds", "out_of_range"),
        (model(max_run_seconds=31_600_000), "max_run_seconds", "out_of_range"),
        (model(when="x" * 1_001), "when", "invalid_expression"),
        (nodes(a={"workflow": "w", "inputs": {"$literal": 1, "y": 2}}), "inputs", "invalid_expression"),
    ],
)  # fmt: skip
def test_a_value_with_which_a_node_always_fails_is_refused(value: Any, pointer: str, code: str) -> None:
    limits = replace(definition_limits(), max_bytes=1_000_000)
    assert errors_of(value, limits=limits) == [(f"/nodes/a/{pointer}", code)]


@pytest.mark.parametrize(
    "value",
    [
        ask(choose_from=[A_REF], default="b", **EXPIRES),
        ask(choose_from=[1, 2], default=2.0, **EXPIRES),
        ask(choose_from=A_REF, default="b", **EXPIRES),
        ask(form={}, default={"image": {"$artifact": "x"}}, **EXPIRES),
        timer(seconds=0),
        timer(seconds=A_REF),
        timer(until="2026-02-01T12:00:00+01:00"),
        model(map={"count": 4.0}),
        model(map={"count": 0}),
        model(map={"count": A_REF}),
        model(map={"over": []}),
        model(map={"over": [A_REF]}),
        model(map={"over": {"$artifact": "x"}}),
        model(map={"over": {"$artifact": A_REF}}),
        model(payload={"x": {"$literal": {"$ref": "x", "y": 1}}}),
        model(payload={"x": {"$ref": "inputs", "default": {"y": [1]}}}),
        model(payload=A_REF),
    ],
)
def test_a_value_with_which_a_node_may_run_is_stored(value: Any) -> None:
    read_definition(value, limits=definition_limits())


def test_all_wrong_values_are_named_at_once() -> None:
    value = nodes(
        a={"model": "m", "payload": 5, "map": {"count": -1, "max_parallel": 20_000}, "when": "("},
        b={"timer": {"seconds": -1}, "needs": ["c"]},
        z={"human": {"title": "?", "choose_from": []}},
    )
    assert errors_of({**value, "on_failure": {"node": "z"}}, limits=definition_limits()) == [
        ("/nodes/a/map/count", "not_a_count"),
        ("/nodes/a/map/max_parallel", "out_of_range"),
        ("/nodes/a/payload", "payload_invalid"),
        ("/nodes/a/when", "invalid_expression"),
        ("/nodes/b/needs/0", "unknown_node"),
        ("/nodes/b/timer/seconds", "invalid_timer"),
        ("/nodes/z/human/choose_from", "no_choices"),
    ]


_SHORT = ExpressionLimits(7, 5, 2, settings="DISPATCHER_WORKFLOW_EXPRESSION")


@pytest.mark.parametrize(
    ("value", "limit", "text"),
    [
        (model(map={"count": 3}), {"map_items": 2}, "2 items (…MAP_ITEMS), not 3"),
        (model(map={"count": 3, "max_parallel": 3}), {"max_parallel": 2}, "2 (…MAX_PARALLEL)"),
        (ask(choose_from=[1, 2, 3]), {"choices": 2}, "2 choices (…CHOICES), not 3"),
        (ask(form={}, answer_by=["a", "b"]), {"answer_keys": 1}, "1 items (…ANSWER_KEYS)"),
        (ask(form={}, expires_seconds=3), {"wait_seconds": 2.0}, "2 (…WAIT_SECONDS)"),
        (timer(seconds=3), {"wait_seconds": 2.0}, "from 0 to 2 (…WAIT_SECONDS)"),
        (model(cache={"ttl_seconds": 3}), {"cache_seconds": 2.0}, "2 (…CACHE_SECONDS)"),
        (ask(form={}), {"text_characters": 0}, "0 characters (…TEXT_CHARACTERS)"),
        ({**timer(seconds=1), "description": "ab"}, {"text_characters": 1}, "1 characters (…TEXT_CHARA"),
        (model(when="inputs.b"), {"expressions": _SHORT}, "7 characters (…EXPRESSION_CHARACTERS)"),
        (model(payload={"$ref": "inputs.b"}), {"expressions": _SHORT}, "7 characters (…EXPRESSION_CHA"),
        (model(when="!!run"), {"expressions": _SHORT}, "2 levels deep (…EXPRESSION_DEPTH)"),
    ],
)  # fmt: skip
def test_a_refusal_names_the_limit_and_its_setting(value: Any, limit: dict[str, Any], text: str) -> None:
    limits: Limits = replace(definition_limits(), **limit)
    with pytest.raises(Problem) as refused:
        read_definition(value, limits=limits)
    (error,) = refused.value.errors
    assert text.replace("…", "DISPATCHER_WORKFLOW_") in error.detail
    read_definition(value, limits=definition_limits())


@pytest.mark.parametrize(
    "value",
    [
        ask(choose_from=[]),
        ask(form={}, title="x" * 2_000, expires_seconds=1e9),
        model(map={"count": -1, "max_parallel": 20_000}, payload={"$literal": 1, "y": 2}),
        model(payload={"x": {"$ref": ".".join(["inputs"] * 200)}}),
    ],
)
def test_values_stored_by_an_earlier_release_are_still_read(value: Any) -> None:
    read_definition(value)
