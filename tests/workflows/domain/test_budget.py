"""What references may cost: a small definition can't make a large value, or a long search."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workflows.definition.read import read_definition
from workflows.domain.advance import Steps, advance
from workflows.domain.budget import Costs, measure
from workflows.domain.states import NodeState, RunState

TIMER = {"timer": {"seconds": 1}}
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=30,
)


def steps_of(
    nodes: dict[str, Any], inputs: Any, costs: Costs, *, output: Any = None, ended: bool = False
) -> Steps:
    plan = read_definition({"nodes": nodes, "output": output})
    state = NodeState.COMPLETED if ended else NodeState.PENDING
    return advance(plan, dict.fromkeys(plan.nodes, state), [], {"inputs": inputs}, costs=costs)


@pytest.mark.parametrize(("copies", "code"), [(90, ""), (110, "value_too_large")])
def test_an_output_has_at_most_so_many_bytes_however_often_it_repeats_a_value(copies: int, code: str) -> None:
    output = [{"$ref": "inputs"}] * copies
    steps = steps_of({"a": TIMER}, "x" * 998, Costs(most_bytes=100_000), output=output, ended=True)
    assert steps.end is not None
    assert (steps.end.state, steps.end.code) == (RunState.FAILED if code else RunState.COMPLETED, code)
    if code:
        assert "100000 bytes" in steps.end.detail


@pytest.mark.parametrize(
    "node",
    [
        {"model": "m", "payload": {"x": [{"$ref": "inputs.a"}] * 3}},
        {"workflow": "w", "inputs": [{"$ref": "inputs.a"}] * 3},
        {"map": {"over": [{"$ref": "inputs.a"}] * 3}, **TIMER},
    ],
)
def test_a_node_whose_values_are_too_large_fails(node: dict[str, Any]) -> None:
    steps = steps_of({"a": node}, {"a": "x" * 400}, Costs(most_bytes=1_000))
    assert [(move.state, move.code) for move in steps.moves] == [(NodeState.FAILED, "value_too_large")]


@pytest.mark.parametrize(
    "node",
    [
        {"model": "m", "payload": {"x": {"$ref": "length(inputs.a[?@ > `1`])"}}},
        {"when": "inputs.a[?@ > `1`]", **TIMER},
    ],
)
def test_a_search_that_takes_too_many_steps_fails_its_node(node: dict[str, Any]) -> None:
    steps = steps_of({"a": node}, {"a": [1] * 1_000}, Costs(most_steps=1_000))
    assert [(move.state, move.code) for move in steps.moves] == [(NodeState.FAILED, "search_too_long")]
    assert "1000 steps (DISPATCHER_WORKFLOW_SEARCH_STEPS)" in steps.moves[0].detail


def test_the_references_of_a_node_share_its_steps() -> None:
    refs = [{"$ref": "length(inputs.a[?@ > `1`])"}]

    def outcome(count: int) -> list[str]:
        node = {"model": "m", "payload": {"x": refs * count}}
        moves = steps_of({"a": node}, {"a": [1] * 1_000}, Costs(most_steps=40_000)).moves
        return [move.code for move in moves]

    assert outcome(1) == outcome(2) == []
    assert outcome(4) == ["search_too_long"]


def test_a_path_costs_no_steps() -> None:
    node = {"model": "m", "payload": {"x": {"$ref": "inputs.a[0]"}}}
    steps = steps_of({"a": node}, {"a": [1] * 1_000}, Costs(most_steps=1))
    assert [start.node.key for start in steps.starts] == ["a"]


def test_nodes_after_a_long_search_start_in_another_call() -> None:
    node = {"model": "m", "payload": {"x": {"$ref": "length(inputs.a[*])"}}}
    costs = Costs(most_steps=5_000)
    steps = steps_of({key: node for key in "abcd"}, {"a": [1] * 1_000}, costs)
    assert [start.node.key for start in steps.starts] == ["a", "b"]
    assert steps.more


def test_values_nested_deeper_than_a_body_may_be_fail_the_node() -> None:
    deep: Any = 1
    for _ in range(62):
        deep = [deep]
    refs = {"a": {"model": "m", "payload": {"x": [{"$ref": "inputs"}]}}}
    steps = steps_of(refs, deep, Costs())
    assert [(move.state, move.code) for move in steps.moves] == [(NodeState.FAILED, "value_too_deep")]
    assert steps_of({"a": {"model": "m", "payload": {"x": {"$ref": "inputs"}}}}, deep, Costs()).starts


@given(JSON)
def test_a_size_is_about_that_of_the_json(value: Any) -> None:
    length = len(json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode())
    size = measure(value, None)
    assert length / 3 <= size.count <= 4 * length


def test_depth_and_values_are_counted() -> None:
    size = measure({"a": [1, [2, {}]], "b": "x"}, None)
    assert (size.values, size.depth) == (7, 4)
    assert measure([["x" * 100] * 100] * 100, 500).values < 10
