"""The rules of a run, one by one, and random graphs against a second, naive reading of the rules.

`FUZZ_CASES=100000 python3 manage.py test tests/workflows` tries that many graphs."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dispatcher_client.workflow_simulation import Expired, Failure, SimulatedRun, simulate
from tests.workflows.driver import Driver, NodeExpired, NodeFailed
from workflows.definition.read import read_definition
from workflows.domain.advance import NodeMove, RunEnd, advance, failed_node, nodes_to_restart
from workflows.domain.states import NodeState, RunState

A_MODEL = {"model": "zimg"}
CASES = int(os.environ.get("FUZZ_CASES", "0"))


def drive(
    nodes: dict[str, Any],
    *,
    failing: set[str] = frozenset(),
    inputs: Any = None,
    **rest: Any,  # type: ignore[assignment]
) -> tuple[Driver, Any]:
    """Run a definition to its end; nodes in `failing` fail, the others return their settings."""

    def run(key: str, given: Any) -> Any:
        if key in failing:
            raise NodeFailed(key)
        return given

    driver = Driver(read_definition({"nodes": nodes, **rest}), inputs, run)
    return driver, driver.to_end()


def states(driver: Driver) -> dict[str, str]:
    return {key: str(state) for key, state in driver.states.items()}


def test_a_node_starts_once_all_that_it_needs_have_ended() -> None:
    nodes = {
        "last": {"model": "zimg", "payload": {"of": {"$ref": "left.payload.x"}}, "needs": ["right"]},
        "left": {"model": "zimg", "payload": {"x": {"$ref": "first.payload.y"}}},
        "right": {**A_MODEL, "needs": ["first"]},
        "first": {"model": "zimg", "payload": {"y": {"$ref": "inputs.z"}}},
    }
    driver, end = drive(nodes, inputs={"z": 7}, output={"got": {"$ref": "last.payload.of"}})
    assert end.state is RunState.COMPLETED
    assert end.output == {"got": 7}
    assert [key for key, _ in driver.calls] in (
        ["first", "left", "right", "last"],
        ["first", "right", "left", "last"],
    )


@pytest.mark.parametrize(
    ("rule", "failing", "skipping", "state"),
    [
        ("all_success", set(), set(), "completed"),
        ("all_success", set(), {"a"}, "completed"),
        ("all_success", set(), {"a", "b"}, "skipped"),
        ("all_success", {"a"}, set(), "cancelled"),
        ("none_failed", set(), {"a", "b"}, "completed"),
        ("none_failed", {"a"}, set(), "cancelled"),
        ("all_done", {"a", "b"}, set(), "completed"),
        ("any_success", {"a"}, set(), "completed"),
        ("any_success", {"a"}, {"b"}, "cancelled"),
        ("any_success", set(), {"a", "b"}, "skipped"),
    ],
)
def test_each_needs_rule(rule: str, failing: set[str], skipping: set[str], state: str) -> None:
    never = {"when": "inputs.nothing"}
    nodes = {key: {**A_MODEL, **(never if key in skipping else {})} for key in ("a", "b")}
    driver, _ = drive({**nodes, "c": {**A_MODEL, "needs": ["a", "b"], "needs_rule": rule}}, failing=failing)
    assert states(driver)["c"] == state


def test_a_failure_fails_the_run_unless_every_node_that_needs_it_tolerates_it() -> None:
    tolerant = {**A_MODEL, "needs": ["a"], "needs_rule": "all_done"}
    assert drive({"a": A_MODEL, "b": tolerant}, failing={"a"})[1].state is RunState.COMPLETED
    assert drive({"a": A_MODEL}, failing={"a"})[1].state is RunState.FAILED
    strict = {**A_MODEL, "needs": ["a"]}
    driver, end = drive({"a": A_MODEL, "b": tolerant, "c": strict}, failing={"a"})
    assert (end.state, end.node) == (RunState.FAILED, "a")
    assert states(driver) == {"a": "failed", "b": "completed", "c": "cancelled"}


def test_branches_that_do_not_depend_on_a_failure_go_on() -> None:
    nodes = {"a": A_MODEL, "b": A_MODEL, "after_b": {**A_MODEL, "needs": ["b"]}}
    driver, end = drive(nodes, failing={"a"})
    assert end.state is RunState.FAILED
    assert states(driver)["after_b"] == "completed"


def test_a_failure_may_cancel_the_rest() -> None:
    nodes = {"a": A_MODEL, "b": A_MODEL, "after_b": {**A_MODEL, "needs": ["b"]}}
    driver, end = drive(nodes, failing={"a"}, on_failure={"running": "cancel"})
    assert (end.state, end.node) == (RunState.FAILED, "a")
    assert states(driver) == {"a": "failed", "b": "cancelled", "after_b": "cancelled"}


@pytest.mark.parametrize("running", ["finish", "cancel"])
def test_the_error_names_the_node_that_failed_and_none_that_did_not_start(running: str) -> None:
    """`other` comes first, and is cancelled with the rest; `either` needs a node that failed and a skipped
    one."""
    nodes = {
        "other": {**A_MODEL, "needs": ["early"]},
        "early": A_MODEL,
        "a": A_MODEL,
        "skipped": {**A_MODEL, "when": "inputs.nothing"},
        "either": {**A_MODEL, "needs": ["a", "skipped"], "needs_rule": "any_success"},
        "last": {**A_MODEL, "needs": ["either"]},
    }
    driver, end = drive(nodes, failing={"a"}, on_failure={"running": running})
    assert (end.state, end.node, end.detail) == (RunState.FAILED, "a", "a failed")
    assert states(driver)["either"] == states(driver)["last"] == "cancelled"


def test_the_first_node_for_which_the_rest_is_cancelled_stays_in_the_error() -> None:
    nodes = {"a": A_MODEL, "b": A_MODEL, "c": A_MODEL}
    plan = read_definition({"nodes": nodes, "on_failure": {"running": "cancel"}})
    at = dict.fromkeys("abc", NodeState.RUNNING)
    steps = advance(plan, at, [NodeMove("b", NodeState.CANCELLED)], {})
    assert (steps.first_failed, steps.cancel) == ("b", ("a", "c"))
    ends = [NodeMove("a", NodeState.FAILED), NodeMove("c", NodeState.CANCELLED)]
    steps = advance(plan, steps.states, ends, {}, first_failed="b")
    assert steps.end is not None
    assert (steps.end.node, steps.end.detail) == ("b", "b failed (1 more node failed)")


def test_the_failure_node_runs_last_and_gets_the_error() -> None:
    nodes = {"a": A_MODEL, "b": A_MODEL, "mail": {"model": "zimg", "payload": {"$ref": "error"}}}
    driver, end = drive(nodes, failing={"a"}, on_failure={"node": "mail"})
    assert end.state is RunState.FAILED
    key, given = driver.calls[-1]
    assert key == "mail"
    assert given["payload"] == {"node": "a", "code": "node_failed", "message": "a failed"}
    driver, end = drive({"a": A_MODEL, "mail": A_MODEL}, on_failure={"node": "mail"})
    assert (end.state, states(driver)["mail"]) == (RunState.COMPLETED, "skipped")


def test_the_error_names_the_reason_of_the_first_failed_node() -> None:
    nodes = {"a": A_MODEL, "b": A_MODEL, "c": A_MODEL, "seen": {**A_MODEL, "needs": ["c"]}}
    nodes["seen"]["needs_rule"] = "all_done"
    failed = dict.fromkeys("abc", NodeState.FAILED) | {"seen": NodeState.COMPLETED}
    plan = read_definition({"nodes": nodes})
    steps = advance(plan, failed, [], {}, reason=lambda key, move: f"{key} is broken")
    assert steps.end is not None
    assert steps.end.detail == "a failed: a is broken (1 more node failed)", "c is tolerated"


def test_a_reference_without_a_default_that_selects_nothing_fails_before_any_model_runs() -> None:
    driver, end = drive({"a": {"model": "zimg", "payload": [{"x": {"$ref": "inputs.nothing"}}]}}, inputs={})
    assert (end.state, driver.calls) == (RunState.FAILED, [])
    driver, end = drive({"a": {"model": "zimg", "payload": {"$ref": "inputs.x", "default": None}}}, inputs={})
    assert driver.calls == [("a", {"payload": None})]


def test_an_output_that_selects_nothing_fails_the_run_and_runs_the_failure_node() -> None:
    driver, end = drive(
        {"a": A_MODEL, "mail": A_MODEL}, output={"$ref": "a.none"}, on_failure={"node": "mail"}
    )
    assert (end.state, end.code) == (RunState.FAILED, "unresolved_ref")
    assert driver.calls[-1][0] == "mail"


def test_what_a_reference_selects_is_never_interpreted() -> None:
    hostile = {"$ref": "inputs.secret"}
    nodes = {
        "a": {"model": "zimg", "payload": {"$ref": "inputs.x"}},
        "b": {"model": "zimg", "payload": {"$ref": "a"}},
    }
    driver, _ = drive(nodes, inputs={"x": hostile, "secret": 1})
    assert driver.calls == [("a", {"payload": hostile}), ("b", {"payload": {"payload": hostile}})]
    driver, _ = drive({"a": {"model": "zimg", "payload": {"$literal": hostile}}}, inputs={"secret": 1})
    assert driver.calls == [("a", {"payload": hostile})]


def test_a_map_runs_a_window_of_children_and_returns_their_outputs_in_order() -> None:
    nodes = {
        "a": {
            "model": "zimg",
            "payload": {"i": {"$ref": "index"}, "x": {"$ref": "item"}},
            "map": {"over": {"$ref": "inputs.xs"}, "max_parallel": 2},
        },
        "b": {"model": "zimg", "payload": {"$ref": "a[*].payload.x"}},
    }
    driver, end = drive(nodes, inputs={"xs": list("pqrst")})
    assert end.state is RunState.COMPLETED
    assert driver.calls[-1] == ("b", {"payload": list("pqrst")})
    assert driver.most_at_once == 2


def test_a_map_over_an_empty_list_completes() -> None:
    driver, end = drive(
        {
            "a": {"model": "zimg", "map": {"over": {"$ref": "inputs.xs"}}},
            "b": {"model": "zimg", "payload": {"$ref": "a"}},
        },
        inputs={"xs": []},
    )
    assert end.state is RunState.COMPLETED
    assert driver.calls == [("b", {"payload": []})]


@pytest.mark.parametrize(
    ("fail_at", "state"),
    [(1, "failed"), (2, "failed"), (3, "completed"), (0.5, "failed"), (0.75, "completed")],
)
def test_a_map_fails_at_its_number_or_share_of_failed_children(fail_at: float, state: str) -> None:
    plan = read_definition(
        {"nodes": {"a": {**A_MODEL, "payload": {"$ref": "index"}, "map": {"count": 4, "fail_at": fail_at}}}}
    )

    def run(key: str, given: Any) -> Any:
        if given["payload"] in (1, 2):
            raise NodeFailed
        return given["payload"]

    driver = Driver(plan, None, run)
    driver.to_end()
    assert states(driver)["a"] == state
    if state == "completed":
        assert driver.outputs["a"] == [0, None, None, 3]


@pytest.mark.parametrize(
    ("count", "code"), [(-1, "not_a_count"), (1.5, "not_a_count"), (None, ""), (101, "too_many_items")]
)
def test_a_map_by_anything_but_an_allowed_number_fails(count: Any, code: str) -> None:
    plan = read_definition({"nodes": {"a": {**A_MODEL, "map": {"count": {"$ref": "inputs.x"}}}}})
    steps = advance(plan, {"a": NodeState.PENDING}, [], {"inputs": {"x": count}}, most_items=100)
    assert [move.code for move in steps.moves] == [code or "unresolved_ref"]


def test_a_map_takes_a_whole_number_that_is_written_as_a_fraction() -> None:
    plan = read_definition({"nodes": {"a": {**A_MODEL, "map": {"count": {"$ref": "inputs.x"}}}}})
    (start,) = advance(plan, {"a": NodeState.PENDING}, [], {"inputs": {"x": 4.0}}).starts
    assert (start.items, type(start.items)) == (4, int)


@pytest.mark.parametrize(
    ("over", "code"), [("text", "not_a_list"), ({"a": 1}, "not_a_list"), ([0] * 101, "too_many_items")]
)
def test_a_map_over_anything_but_a_list_of_the_allowed_length_fails(over: Any, code: str) -> None:
    plan = read_definition({"nodes": {"a": {**A_MODEL, "map": {"over": {"$ref": "inputs.x"}}}}})
    steps = advance(plan, {"a": NodeState.PENDING}, [], {"inputs": {"x": over}}, most_items=100)
    assert [move.code for move in steps.moves] == [code]


def test_a_cancelled_run_ends_once_its_running_nodes_have() -> None:
    plan = read_definition(
        {
            "nodes": {"a": A_MODEL, "b": {**A_MODEL, "needs": ["a"]}, "mail": A_MODEL},
            "on_failure": {"node": "mail"},
        }
    )
    at = {"a": NodeState.RUNNING, "b": NodeState.PENDING, "mail": NodeState.PENDING}
    steps = advance(plan, at, [], {"inputs": None}, cancelled=True)
    assert (steps.cancel, steps.end, steps.starts) == (("a",), None, [])
    steps = advance(
        plan, steps.states, [NodeMove("a", NodeState.CANCELLED)], {"inputs": None}, cancelled=True
    )
    assert steps.end is not None
    assert steps.end.state is RunState.CANCELLED
    assert set(steps.states.values()) <= {NodeState.CANCELLED, NodeState.SKIPPED}


def test_a_paused_run_starts_no_node_and_goes_on_afterwards() -> None:
    plan = read_definition({"nodes": {"a": A_MODEL, "b": {**A_MODEL, "needs": ["a"]}}})
    at = {"a": NodeState.RUNNING, "b": NodeState.PENDING}
    steps = advance(plan, at, [NodeMove("a", NodeState.COMPLETED, output=1)], {"inputs": None}, paused=True)
    assert (steps.starts, steps.states["b"]) == ([], NodeState.PENDING)
    assert [start.node.key for start in advance(plan, steps.states, [], {"inputs": None}).starts] == ["b"]


def test_an_end_that_arrives_twice_changes_nothing() -> None:
    plan = read_definition({"nodes": {"a": A_MODEL}})
    end = NodeMove("a", NodeState.COMPLETED, output=1)
    steps = advance(plan, {"a": NodeState.COMPLETED}, [end], {"inputs": None, "a": 1})
    assert steps.moves == []


def test_a_call_starts_at_most_so_many_nodes() -> None:
    plan = read_definition({"nodes": {f"n{i}": A_MODEL for i in range(5)}})
    steps = advance(plan, dict.fromkeys(plan.nodes, NodeState.PENDING), [], {"inputs": None}, most_starts=3)
    assert (len(steps.starts), steps.more) == (3, True)
    steps = advance(plan, steps.states, [], {"inputs": None}, most_starts=3)
    assert (len(steps.starts), steps.more) == (2, False)


def test_a_restart_runs_the_failed_nodes_and_all_after_them() -> None:
    chain = {"a": A_MODEL, "b": {**A_MODEL, "needs": ["a"]}, "c": {**A_MODEL, "needs": ["b"]}, "d": A_MODEL}
    driver, _ = drive(chain, failing={"b"})
    assert nodes_to_restart(driver.plan, driver.states) == {"b", "c"}
    assert nodes_to_restart(driver.plan, driver.states, ["a"]) == {"a", "b", "c"}


# -- random graphs -------------------------------------------------------------------------------------------

_RULES = ("all_success", "none_failed", "all_done", "any_success")


CHILD: dict[str, Any] = {
    "nodes": {
        "x": {"model": "m", "payload": {"me": {"$ref": "inputs.me"}, "index": {"$ref": "inputs.index"}}},
        "y": {"model": "m", "payload": {"me": "y", "n": {"$ref": "x.n", "default": 0}}, "when": "x.ok"},
    },
    "output": {"n": {"$ref": "x.n"}, "items": {"$ref": "x.items", "default": []}},
}
_CHILD_PLAN = read_definition(CHILD)


@st.composite
def definitions(draw: st.DrawFn) -> dict[str, Any]:
    """Return a definition of up to nine nodes of all kinds, each of which may use those before it."""
    nodes: dict[str, Any] = {}
    for number in range(draw(st.integers(1, 9))):
        key = f"n{number}"
        before = list(nodes)
        given: dict[str, Any] = {"me": key, "index": None}
        node: dict[str, Any] = {}
        if before:
            node["needs"] = draw(st.lists(st.sampled_from(before), max_size=2, unique=True))
            node["needs_rule"] = draw(st.sampled_from(_RULES))
            for name in draw(st.lists(st.sampled_from(before), max_size=2, unique=True)):
                field = draw(st.sampled_from(["n", "items", "nothing", "items[0]"]))
                ref: dict[str, Any] = {"$ref": f"{name}.{field}"}
                if draw(st.booleans()):
                    ref["default"] = 0
                given[name] = [ref]
            if draw(st.integers(0, 4)) == 0:
                other = draw(st.sampled_from(before))
                node["when"] = draw(
                    st.sampled_from([f"{other}.n > `1`", f"!{other}.ok", f"length({other}.n) > `0`"])
                )
        if draw(st.integers(0, 3)) == 0:
            over = {"$ref": f"{draw(st.sampled_from(before))}.items", "default": []} if before else [1, 2]
            node["map"] = {"over": over} if draw(st.booleans()) else {"count": draw(st.integers(0, 4))}
            node["map"]["fail_at"] = draw(st.sampled_from([1, 2, 0.5, 0.9]))
            given["index"] = {"$ref": "index"}
        nodes[key] = node | draw(_kinds(key, given))
    found: dict[str, Any] = {"nodes": nodes}
    if draw(st.booleans()):
        found["output"] = {"$ref": f"{draw(st.sampled_from(list(nodes)))}.n"}
    if draw(st.booleans()):
        nodes["handler"] = {
            "model": "m",
            "payload": {"me": "handler", "error": {"$ref": "error.node", "default": ""}},
        }
        found["on_failure"] = {"node": "handler"}
    return found


@st.composite
def _kinds(draw: st.DrawFn, key: str, given: dict[str, Any]) -> dict[str, Any]:
    """Return the part of a node that says its kind, most often a model. given: what a model or workflow
    gets."""
    kind = draw(st.sampled_from(["model"] * 4 + ["workflow", "human", "choice", "signal", "timer"]))
    if kind == "model":
        return {"model": "m", "payload": given}
    if kind == "workflow":
        return {"workflow": "child", "inputs": given}
    refs = [value[0] for value in given.values() if isinstance(value, list)]
    if kind == "timer":
        names = [ref["$ref"].partition(".")[0] for ref in refs]
        return {"timer": {"seconds": {"$ref": f"{names[0]}.n", "default": 0} if names else 1}}
    wait: dict[str, Any] = {"expires_seconds": 60, "on_expiry": draw(st.sampled_from(["fail", "skip"]))}
    if draw(st.integers(0, 2)) == 0:
        wait |= {"on_expiry": "default", "default": {"n": 1}}
    if kind == "signal":
        return {"signal": {"name": key, **wait}}
    asked = {"choose_from": refs[0] if refs else [{"n": 1}]} if kind == "choice" else {"form": True}
    return {"human": {"title": "?", **asked, **wait}}


_outcomes = st.sampled_from(
    [
        {"ok": True, "n": 2, "items": [1, 2, 3]},
        {"ok": False, "n": 0, "items": []},
        {"n": 1},
        None,
        "failed",
        "failed",
    ]
)
_many_outcomes = st.lists(_outcomes, min_size=9, max_size=9)
Outcomes = Callable[[str], list[Any]]
"""Returns the outcomes among which the work of a node has its own."""


class _Work:
    """What the nodes of a definition do: for the naive reading, and for the driver."""

    def __init__(self, definition: dict[str, Any], outcomes: Outcomes) -> None:
        self._nodes, self._outcomes = definition["nodes"], outcomes

    @property
    def fakes(self) -> dict[str, Callable[[Any], Any]]:
        waits = {key: partial(self._wait, key) for key, node in self._nodes.items() if not _is_given(node)}
        return {"m": self._model, "child": self._child, **waits}

    def run(self, key: str, given: Any) -> Any:
        """Return the output of a node for the driver."""
        node = self._nodes[key]
        if "timer" in node:
            return None
        if not _is_given(node):
            found = self._outcome(key, None)
            if found == "failed":
                raise NodeExpired
            return given["choose_from"][0] if "choose_from" in given else found
        if "workflow" in node:
            driver = Driver(_CHILD_PLAN, given["inputs"], lambda _, own: self._done(key, own["payload"]))
            if (end := driver.to_end()).state is RunState.FAILED:
                raise NodeFailed(end.detail)
            return end.output
        return self._done(key, given["payload"])

    def _done(self, key: str, payload: Any) -> Any:
        if (found := self._outcome(key, payload)) == "failed":
            raise NodeFailed
        return found

    def _outcome(self, key: str, payload: Any) -> Any:
        """key: of the node in the definition, whose sub-run's nodes may be meant."""
        outcomes, place = self._outcomes(key), [key, (payload or {}).get("me"), (payload or {}).get("index")]
        return outcomes[sum(json.dumps(place).encode()) % len(outcomes)]

    def _model(self, payload: Any, key: str = "") -> Any:
        if (found := self._outcome(key or payload["me"], payload)) == "failed":
            raise Failure
        return found

    def _child(self, inputs: Any) -> Any:
        found = simulate(CHILD, inputs, {"m": partial(self._model, key=inputs["me"])})
        if found.error is not None:
            raise Failure(found.error["message"], found.error["code"])
        return found.output

    def _wait(self, key: str, asked: Any) -> Any:
        if (found := self._outcome(key, None)) == "failed":
            raise Expired
        return asked["choose_from"][0] if "choose_from" in asked else found


def _is_given(node: dict[str, Any]) -> bool:
    return "model" in node or "workflow" in node


@settings(max_examples=CASES or 80, deadline=None)
@given(definitions(), _many_outcomes, st.randoms(use_true_random=False), st.integers(1, 4))
def test_a_failure_of_a_random_graph_cancels_what_runs_beside_it_and_starts_nothing_more(
    definition: dict[str, Any], outcomes: list[Any], random: Any, most_starts: int
) -> None:
    """Which nodes have ended by then depends on the order; each of these ended as it would without the
    cancel."""
    work = _Work(definition, lambda key: outcomes)
    whole = simulate(definition, None, work.fakes)
    handler = definition.get("on_failure", {}).get("node")
    cancelling = {**definition, "on_failure": {**definition.get("on_failure", {}), "running": "cancel"}}
    naive = simulate(cancelling, None, work.fakes)
    plan = read_definition(cancelling)
    called_after: list[str] = []

    def watched(key: str, given: Any) -> Any:
        if key != handler and failed_node(plan, driver.states) is not None:
            called_after.append(key)
        return work.run(key, given)

    driver = Driver(plan, None, watched, random.randrange, most_starts)
    end = driver.to_end()
    assert called_after == []
    assert str(end.state) == naive.state == whole.state
    assert end.output == naive.output == whole.output
    for key, node in whole.nodes.items():
        if key != handler:
            assert states(driver)[key] in (node.state, "cancelled")
            assert naive.nodes[key].state in (node.state, "cancelled")
    if end.node:
        assert states(driver)[end.node] == whole.nodes[end.node].state == "failed"
    if naive.failed_node:
        assert naive.nodes[naive.failed_node].state == whole.nodes[naive.failed_node].state == "failed"
    if handler is not None:
        assert states(driver)[handler] == naive.nodes[handler].state


@settings(max_examples=CASES or 80, deadline=None)
@given(definitions(), _many_outcomes, st.randoms(use_true_random=False), st.integers(1, 4))
def test_a_random_graph_ends_as_its_naive_reading(
    definition: dict[str, Any], outcomes: list[Any], random: Any, most_starts: int
) -> None:
    """Also if it is paused now and then."""
    work = _Work(definition, lambda key: outcomes)
    plan = read_definition(definition)
    driver = Driver(
        plan, None, work.run, random.randrange, most_starts, pauses=lambda: random.randrange(4) == 0
    )
    _assert_same(driver, driver.to_end(), simulate(definition, None, work.fakes))


@settings(max_examples=CASES or 80, deadline=None)
@given(
    definitions(),
    st.tuples(_many_outcomes, _many_outcomes),
    st.randoms(use_true_random=False),
    st.integers(1, 4),
    st.booleans(),
)
def test_a_restarted_random_graph_ends_as_its_naive_reading(
    definition: dict[str, Any],
    both: tuple[list[Any], list[Any]],
    random: Any,
    most_starts: int,
    is_chosen: bool,
) -> None:
    """The nodes that run again have other outcomes then; the rest keeps its own."""
    handler = definition.get("on_failure", {}).get("node")
    outcomes, later = both
    work = _Work(definition, lambda key: outcomes)
    driver = Driver(read_definition(definition), None, work.run, random.randrange, most_starts)
    driver.to_end()
    keys = [key for key in definition["nodes"] if key != handler]
    chosen = [random.choice(keys)] if is_chosen else None
    again = nodes_to_restart(driver.plan, driver.states, chosen)
    assert again == _naively_again(definition, chosen or [key for key in keys if states(driver)[key] in _BAD])
    anew = _Work(definition, lambda key: later if key in again or key == handler else outcomes)
    driver.run = anew.run
    driver.restart(again)
    _assert_same(driver, driver.to_end(), simulate(definition, None, anew.fakes))


_BAD = ("failed", "cancelled")


def _naively_again(definition: dict[str, Any], chosen: list[str]) -> set[str]:
    """Return these nodes and all that need one of them, found by looking often enough."""
    of_text = {key: json.dumps(node) for key, node in definition["nodes"].items()}
    again = set(chosen)
    for _ in of_text:
        for key, text in of_text.items():
            if key != "handler" and any(f'"{one}"' in text or f"{one}." in text for one in again):
                again.add(key)
    return again


def _assert_same(driver: Driver, end: RunEnd, naive: SimulatedRun) -> None:
    assert str(end.state) == naive.state
    assert end.output == naive.output
    if naive.error is not None:
        assert (end.node or None, end.code) == (naive.error["node"], naive.error["code"])
        begin, of_others = end.detail.partition(" (")[::2] if end.node else (end.detail, "")
        assert naive.error["message"].startswith(begin)
        assert naive.error["message"].endswith(of_others)
    assert states(driver) == {key: node.state for key, node in naive.nodes.items()}
    completed = {key: node.output for key, node in naive.nodes.items() if node.output is not None}
    assert {key: output for key, output in driver.outputs.items() if output is not None} == completed
