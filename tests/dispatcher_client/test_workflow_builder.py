"""The builder of workflows: the JSON that it makes, its mistakes with their lines, and random graphs that the
dispatcher's own reader accepts."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jmespath
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dispatcher_client import Workflow, WorkflowError, default, each, flat, fn, literal
from dispatcher_client.references import Reference
from dispatcher_client.workflow_simulation import Expired, Failure, simulate
from foundation.http_api.problems import Problem
from workflows.definition.limits import definition_limits
from workflows.definition.read import read_definition


def film() -> Workflow:
    wf = Workflow("film", inputs={"prompt": str})
    images = wf.map(count=4, max_parallel=2).model("zimg", key="images", prompt=wf.inputs.prompt)
    best = wf.human("Choose one", key="best", choose_from=images[:].url, expires_seconds=60, on_expiry="skip")
    mesh = wf.model("trellis", image=best, when=best != None, max_retries=2)  # noqa: E711
    wf.on_failure(wf.model("notify", key="mail", why=wf.error.message), running="cancel")
    wf.output(mesh=default(mesh.url))
    return wf


def test_the_builder_writes_the_definition() -> None:
    assert film().definition() == {
        "name": "film",
        "inputs": {
            "type": "object",
            "properties": {"prompt": {"type": "string"}},
            "required": ["prompt"],
            "additionalProperties": False,
        },
        "nodes": {
            "images": {
                "map": {"count": 4, "max_parallel": 2},
                "model": "zimg",
                "payload": {"prompt": {"$ref": "inputs.prompt"}},
            },
            "best": {
                "human": {
                    "title": "Choose one",
                    "choose_from": {"$ref": "images[*].url"},
                    "expires_seconds": 60,
                    "on_expiry": "skip",
                }
            },
            "trellis": {
                "model": "trellis",
                "payload": {"image": {"$ref": "best"}},
                "when": "best != `null`",
                "max_retries": 2,
            },
            "mail": {"model": "notify", "payload": {"why": {"$ref": "error.message"}}},
        },
        "output": {"mesh": {"$ref": "trellis.url", "default": None}},
        "on_failure": {"running": "cancel", "node": "mail"},
    }
    assert list(read_definition(film().definition()).nodes) == ["images", "best", "trellis"]


def test_a_node_is_near_another_one() -> None:
    wf, other = Workflow("w"), Workflow("other")
    image = wf.model("zimg", key="image")
    wf.model("trellis", {"image": image}, near=image)
    wf.model("export", needs=[image], fields={"near": 3})
    nodes = wf.definition()["nodes"]
    assert nodes["trellis"]["near"] == "image"
    assert nodes["export"] == {"model": "export", "payload": {"near": 3}, "needs": ["image"]}
    assert read_definition(wf.definition()).nodes["trellis"].options["near"] == "image"
    for wrong in ("image", other.model("x")):
        with pytest.raises(WorkflowError, match="near is a node of this workflow"):
            wf.model("trellis", near=wrong)


def test_a_node_may_take_the_result_of_an_equal_job() -> None:
    wf = Workflow("w")
    wf.model("zimg", prompt="a tree", key="image", cache_seconds=60)
    assert wf.definition()["nodes"]["image"]["cache"] == {"ttl_seconds": 60}
    assert read_definition(wf.definition()).nodes["image"].options["cache_seconds"] == 60


def test_a_map_over_json_lines_runs_with_a_file() -> None:
    wf = Workflow("w")
    lines = wf.map({"$artifact": "01"})
    wf.output(found=lines.model("echo", key="all", n=lines.item.n)[:].n)
    fakes = {"echo": lambda asked: asked}
    assert wf.simulate(fakes, files={"01": '{"n": 1}\n\n{"n": 2}\r\n'}).output == {"found": [1, 2]}
    assert wf.definition()["nodes"]["all"]["map"] == {"over": {"$artifact": "01"}}
    bad = wf.simulate(fakes, files={"01": "1\n{"}).nodes["all"]
    assert (bad.state, bad.error[:7]) == ("failed", "line 2:")
    with pytest.raises(LookupError, match="no file for the artifact 01"):
        wf.simulate(fakes)
    read_definition(wf.definition())


def test_a_workflow_runs_with_fakes() -> None:
    fakes = {
        "zimg": lambda payload: {"url": payload["prompt"]},
        "best": lambda asked: asked["choose_from"][-1],
        "trellis": lambda payload: {"url": payload["image"] + ".glb"},
        "mail": lambda payload: None,
    }
    run = film().simulate(fakes, {"prompt": "fox"})
    assert (run.state, run.output) == ("completed", {"mesh": "fox.glb"})

    def broken(payload: Any) -> Any:
        raise Failure("out of memory")

    assert film().simulate({**fakes, "trellis": broken}, {"prompt": "fox"}).failed_node == "trellis"
    with pytest.raises(ValueError, match="the fake of best answers 'cat', which is none of the choices"):
        film().simulate({**fakes, "best": lambda asked: "cat"}, {"prompt": "fox"})
    with pytest.raises(ValueError, match="the inputs lack prompt, which the workflow requires"):
        film().simulate(fakes, {"promt": "fox"})


def test_a_drawing_has_every_node_and_edge() -> None:
    lines = film().mermaid().splitlines()
    assert lines[0] == "flowchart TD"
    assert '    n_images["images: zimg × 4"]' in lines
    assert '    n_best{{"best: Choose one"}}' in lines
    assert "    n_images --> n_best" in lines
    assert any(re.fullmatch(r'    n_best -\.->\|".*"\| n_trellis', line) for line in lines)
    assert "    failed((failed)) -.-> n_mail" in lines


DATA = {
    "a": {
        "images": [
            {"url": "u0", "score": 0.2, "tags": ["x"], "parts": [1, 2]},
            {"url": "u1", "score": 0.9, "tags": ["x", "y"], "parts": [3]},
        ],
        "odd name": {"`": 7},
        "n": 2,
    }
}
_A = Reference("a", names=frozenset({"a"}))


@pytest.mark.parametrize(
    ("reference", "selected"),
    [
        (_A.n, 2),
        (_A["odd name"]["`"], 7),
        (_A.images[1].url, "u1"),
        (_A.images[-1].url, "u1"),
        (_A.images[:].url, ["u0", "u1"]),
        (_A.images[:].url[0], "u0"),
        (_A.images[:].url[1:], ["u1"]),
        (_A.images[::-1].url, ["u1", "u0"]),
        (_A.images[:1].url, ["u0"]),
        (_A.images[each.score > 0.5].url, ["u1"]),
        (_A.images[each.score > 0.5][0].url, "u1"),
        (_A.images[fn.contains(each.tags, "y") & ~(each.url == "u0")].url[0], "u1"),
        (_A.images[:].tags[1], ["x", "y"]),
        (flat(_A.images[:].parts), [1, 2, 3]),
        (flat(_A.images[:].parts)[each >= 2], [2, 3]),
        (fn.length(_A.images), 2),
        (fn.max(_A.images[:].score), 0.9),
        (fn.length(_A.images) == _A.n, True),
        (~(_A.n == 2), False),
        (~_A.n, False),
        ((_A.n > 1) & (_A.n < 2) | (_A.n == 2), True),
        (fn.type(_A.n), "number"),
        ((_A.n == "it`s") | (_A.n == "it's"), False),
    ],
)
def test_references_select_what_they_read_like(reference: Reference, selected: Any) -> None:
    assert jmespath.search(reference._text, DATA) == selected
    definition = {"nodes": {"a": {"model": "m"}, "b": {"model": "m", "payload": {"$ref": reference._text}}}}
    assert read_definition(definition).nodes["b"].needs == {"a"}


def wf_with_node() -> tuple[Workflow, Any]:
    wf = Workflow("w", inputs={"prompt": str})
    return wf, wf.model("zimg", key="a")


def _while_condition(wf: Workflow, a: Any) -> None:
    if a.score > 1:
        wf.timer(seconds=1)


MISTAKES: list[tuple[Callable[[Workflow, Any], Any], str]] = [
    (lambda wf, a: wf.inputs.prmpt, "inputs has no 'prmpt'; it has prompt"),
    (lambda wf, a: wf.model("m", key="a"), "there is a node a already (test_workflow_builder.py:"),
    (lambda wf, a: wf.model("m", key="A"), "a key has 1 to 64"),
    (lambda wf, a: wf.model("m", key="item"), "the key item is reserved"),
    (lambda wf, a: wf.model("m", x=Workflow("v").model("m", key="b")), "of another workflow, v"),
    (lambda wf, a: wf.model("m", x=wf.map(count=2).index), "index of a map belongs into the node"),
    (lambda wf, a: wf.map(a.list).model("m", when=wf.map(a.list).index == 1), "belongs into the node"),
    (lambda wf, a: wf.map(count=2).item, "has an index and no item"),
    (lambda wf, a: wf.map(), "either over or count"),
    (lambda wf, a: wf.map(count=2, fail_at=1.5), "fail_at is a whole number"),
    (lambda wf, a: wf.map(count=2, max_parallel=0), "max_parallel is at least 1"),
    (lambda wf, a: wf.model("m", x=each.score), "belongs into a filter"),
    (lambda wf, a: a[a.score > 1], "a filter reads only `each`"),
    (lambda wf, a: a[each.score > a.score], "a filter reads only `each`"),
    (lambda wf, a: a["x"][1.5], "an index is a whole number"),
    (lambda wf, a: a[:: a.n], "the bounds of a slice"),
    (lambda wf, a: a == [1], "compared with a number, a text"),
    (lambda wf, a: a > float("inf"), "must be finite"),
    (lambda wf, a: fn.shout(a), "there is no function shout"),
    (lambda wf, a: fn.length("x"), "one side of a comparison is a reference"),
    (_while_condition, "a reference has no value yet"),
    (lambda wf, a: list(a), "wf.map(ref) repeats a node"),
    (lambda wf, a: 1 in a, "fn.contains"),
    (lambda wf, a: wf.model("m", x=object()), "/payload/x: object is not JSON"),
    (lambda wf, a: wf.model("m", x=[float("inf")]), "/payload/x/0: a number must be finite"),
    (lambda wf, a: wf.model("m", x={"$ref": "a"}), "$ref is reserved"),
    (lambda wf, a: wf.model("m", x={1: 2}), "a field's name is a text"),
    (lambda wf, a: wf.model("m", {"x": 1}, y=2), "either payload or its fields"),
    (lambda wf, a: wf.model("m", when=True), "when is a condition"),
    (lambda wf, a: wf.model("m", needs=["a"]), "needs holds nodes of this workflow"),
    (lambda wf, a: wf.model("m", needs_rule="some"), "needs_rule is one of"),
    (lambda wf, a: wf.human("?", form={}, answer_by="lead"), "answer_by is a list"),
    (lambda wf, a: wf.human("?", form={}, answer_by=[]), "answer_by is a list"),
    (lambda wf, a: wf.human("?"), "either choose_from or form"),
    (lambda wf, a: wf.human("?", choose_from=a, on_expiry="skip"), "on_expiry needs expires_seconds"),
    (lambda wf, a: wf.signal("s", default=1), "a default belongs to on_expiry"),
    (lambda wf, a: wf.signal("s", expires_seconds=1, on_expiry="no"), "on_expiry is one of"),
    (lambda wf, a: wf.timer(), "either seconds or until"),
    (lambda wf, a: wf.on_failure(a, running="stop"), "running is one of"),
    (lambda wf, a: wf.on_failure(wf.model("m", key="b", needs=[a])), "neither needs nor map"),
    (lambda wf, a: (wf.model("m", x=wf.error.code), wf.definition()), "exists only in the on_failure node"),
    (lambda wf, a: (wf.model("m", x=a), wf.on_failure(a), wf.definition()), "a runs only on failure"),
    (lambda wf, a: Workflow("v").definition(), "has no nodes"),
    (lambda wf, a: Workflow("v", inputs={"x": set}), "of a type that JSON has"),
    (lambda wf, a: default(3), "default() takes a reference"),
]


@pytest.mark.parametrize(("mistake", "why"), MISTAKES, ids=[why for _, why in MISTAKES])
def test_a_mistake_is_named_with_its_line(mistake: Callable[[Workflow, Any], Any], why: str) -> None:
    wf, a = wf_with_node()
    with pytest.raises(WorkflowError) as raised:
        mistake(wf, a)
    assert why in str(raised.value)
    file, _, line = raised.value.place.partition(":")
    assert file == "test_workflow_builder.py"
    code = mistake.__code__
    assert int(line) in {number for _, _, number in code.co_lines() if number}


BAD_VALUES = [
    (
        {"human": {"title": "?", "choose_from": "VALUE"}},
        "human/choose_from",
        [[], "red", {"a": 1}, 10_001 * [0]],
    ),
    ({"timer": {"seconds": "VALUE"}}, "timer", [-5, True, "5", 1e12, [1]]),
    ({"timer": {"until": "VALUE"}}, "timer", ["tomorrow", "2026-02-01T12:00:00", 5]),
    ({"model": "m", "map": {"count": "VALUE"}}, "map/count", [-1, 4.5, True, "4", 100_001, 1e300]),
    ({"model": "m", "map": {"over": "VALUE"}}, "map/over", [7, "x", {"a": 1}, 100_001 * [0]]),
    ({"model": "m", "payload": "VALUE"}, "payload", [5, [], "x"]),
]  # fmt: skip


@pytest.mark.parametrize(
    ("node", "place", "value"),
    [(node, place, value) for node, place, values in BAD_VALUES for value in values],
    ids=lambda one: str(one)[:20],
)
def test_a_simulation_refuses_the_values_that_the_dispatcher_refuses(
    node: dict[str, Any], place: str, value: Any
) -> None:
    """A literal one at once; one that a reference selects fails its node, with the same code and text."""

    def with_value(found: Any) -> dict[str, Any]:
        text = json.dumps({"nodes": {"a": node}}).replace('"VALUE"', json.dumps(found))
        return dict(json.loads(text))

    with pytest.raises(ValueError, match=f"^/nodes/a/{place}: ") as refused:
        simulate(with_value(value), None, {"m": lambda payload: None})
    with pytest.raises(Problem) as problem:
        read_definition(with_value(value), limits=replace(definition_limits(), max_bytes=10**6))
    (error,) = problem.value.errors
    assert error.pointer.startswith(f"/nodes/a/{place}")
    text = f"{error.detail[0].lower()}{error.detail[1:-1]}"
    assert str(refused.value) == f"/nodes/a/{place}: {error.code}: {text}"
    run = simulate(with_value({"$ref": "inputs"}), value, {"m": lambda payload: None})
    assert (run.state, run.nodes["a"].code, run.nodes["a"].error) == ("failed", error.code, text)


def test_a_simulation_takes_a_whole_number_as_any_json_client_writes_it() -> None:
    run = simulate({"nodes": {"a": {"model": "m", "map": {"count": 4.0}}}}, None, {"m": lambda payload: 1})
    assert run.nodes["a"].output == [1] * 4


def test_a_simulation_refuses_a_default_that_is_none_of_the_choices() -> None:
    wf = Workflow("w")
    wf.human("?", key="a", choose_from=[1, 2], expires_seconds=1, on_expiry="default", default=True)
    with pytest.raises(ValueError, match="/nodes/a/human/default is none of the choices"):
        wf.simulate({"a": lambda asked: 1})


def test_data_with_reserved_keys_is_written_as_a_literal() -> None:
    wf = Workflow("w")
    wf.model("m", x=literal({"$ref": "no"}), file={"$artifact": "01A"})
    payload = wf.definition()["nodes"]["m"]["payload"]
    assert payload == {"x": {"$literal": {"$ref": "no"}}, "file": {"$artifact": "01A"}}


# -- random graphs -------------------------------------------------------------------------------------------

_SCALARS = st.one_of(st.none(), st.booleans(), st.integers(-9, 9), st.text(max_size=4))


@st.composite
def built(draw: Any) -> tuple[Workflow, dict[str, Any]]:  # noqa: PLR0915
    """A workflow by the builder, and the same definition written by hand."""
    wf = Workflow("w")
    nodes: dict[str, Any] = {}
    made: list[Any] = []

    def reference(extra: list[tuple[Any, str]]) -> tuple[Any, str]:
        roots = [(node, node._key) for node in made] + [(wf.inputs, "inputs"), (wf.run, "run"), *extra]
        found, text = draw(st.sampled_from(roots))
        for step in draw(st.lists(st.sampled_from(["a", "odd-name", 0, -1]), max_size=3)):
            found = found[step]
            text += (
                f"[{step}]"
                if isinstance(step, int)
                else "." + (step if step.isidentifier() else json.dumps(step))
            )
        if draw(st.booleans()):
            found, text = found[:].b, f"{text}[*].b"
        elif draw(st.booleans()):
            found, text = found[each.c > 3], f"{text}[?c > `3`]"
        return found, text

    def template(extra: list[tuple[Any, str]], depth: int = 0) -> tuple[Any, Any]:
        kind = draw(st.sampled_from(["ref", "default", "scalar", "list", "dict"] if depth < 2 else ["ref"]))
        if kind in ("ref", "default"):
            found, text = reference(extra)
            if kind == "ref":
                return found, {"$ref": text}
            value = draw(_SCALARS)
            return default(found, value), {"$ref": text, "default": value}
        if kind == "scalar":
            return (value := draw(_SCALARS)), value
        parts = [template(extra, depth + 1) for _ in range(draw(st.integers(0, 2)))]
        if kind == "list":
            return [one for one, _ in parts], [one for _, one in parts]
        return {f"k{i}": one for i, (one, _) in enumerate(parts)}, {
            f"k{i}": one for i, (_, one) in enumerate(parts)
        }

    for number in range(draw(st.integers(1, 6))):
        key = f"n{number}"
        options: dict[str, Any] = {"key": key}
        body: dict[str, Any] = {}
        adder: Any = wf
        extra: list[tuple[Any, str]] = []
        if draw(st.booleans()):
            if draw(st.booleans()):
                adder = wf.map(count=3, max_parallel=2)
                body["map"], extra = {"count": 3, "max_parallel": 2}, [(adder.index, "index")]
            else:
                found, text = reference([])
                adder = wf.map(found, fail_at=0.5)
                body["map"] = {"over": {"$ref": text}, "fail_at": 0.5}
                extra = [(adder.item, "item"), (adder.index, "index")]
        if draw(st.booleans()):
            found, text = reference([])
            options["when"], body["when"] = found != None, f"{text} != `null`"  # noqa: E711
        if made and draw(st.booleans()):
            need = draw(st.sampled_from(made))
            options["needs"], body["needs"] = [need], [need._key]
        if draw(st.booleans()):
            options["needs_rule"] = body["needs_rule"] = draw(
                st.sampled_from(["all_success", "none_failed", "all_done", "any_success"])
            )
        kind = draw(st.sampled_from(["model", "human", "signal", "timer", "workflow"]))
        if kind == "model":
            found, written = template(extra)
            found, written = {"p": found}, {"p": written}
            made.append(adder.model("m", found, **options))
            body |= {"model": "m", "payload": written}
        elif kind == "workflow":
            found, written = template(extra)
            made.append(adder.workflow("v", {"p": found}, version=2, **options))
            body |= {"workflow": "v", "version": 2, "inputs": {"p": written}}
        elif kind == "human":
            found, text = reference(extra)
            made.append(adder.human("?", choose_from=found, **options))
            body |= {"human": {"title": "?", "choose_from": {"$ref": text}}}
        elif kind == "signal":
            made.append(adder.signal("s", expires_seconds=5, on_expiry="skip", **options))
            body |= {"signal": {"name": "s", "expires_seconds": 5, "on_expiry": "skip"}}
        else:
            made.append(adder.timer(seconds=1, **options))
            body |= {"timer": {"seconds": 1}}
        nodes[key] = body
    found, written = template([])
    wf.output(result=found)
    return wf, {"name": "w", "nodes": nodes, "output": {"result": written}}


@settings(max_examples=50, deadline=None)
@given(built())
def test_random_graphs_are_the_json_by_hand_and_are_accepted(
    found: tuple[Workflow, dict[str, Any]],
) -> None:
    wf, by_hand = found
    assert wf.definition() == by_hand
    plan = read_definition(by_hand)
    assert {key: set(node.needs) for key, node in plan.nodes.items()} == wf.needs
    assert len(wf.mermaid().splitlines()) == 1 + len(wf.needs) + sum(map(len, wf.needs.values()))


def test_a_simulated_failure_cancels_the_nodes_after_it() -> None:
    nodes = {key: {"model": "m", "payload": {"key": key}} for key in ("a", "b", "c")}

    def fake(payload: Any) -> Any:
        if payload["key"] == "b":
            raise Failure("broken")
        return {}

    found = simulate({"nodes": nodes, "on_failure": {"running": "cancel"}}, None, {"m": fake})
    assert {key: node.state for key, node in found.nodes.items()} == {
        "a": "completed",
        "b": "failed",
        "c": "cancelled",
    }
    assert found.nodes["c"].code == "run_failed"
    finished = simulate({"nodes": nodes}, None, {"m": fake})
    assert finished.nodes["c"].state == "completed"


def test_a_question_names_the_keys_that_may_answer() -> None:
    wf = Workflow("w")
    wf.human("Which?", key="best", choose_from=[1], answer_by=("lead", "reviewer"))
    human = {"title": "Which?", "choose_from": [1], "answer_by": ["lead", "reviewer"]}
    assert wf.definition()["nodes"]["best"] == {"human": human}


@pytest.mark.parametrize(
    ("on_expiry", "state", "output"),
    [("fail", "failed", None), ("skip", "skipped", None), ("default", "completed", 7)],
)
def test_a_fake_can_let_a_wait_expire(on_expiry: str, state: str, output: Any) -> None:
    def expire(asked: Any) -> Any:
        raise Expired

    wait: dict[str, Any] = {"title": "?", "choose_from": [1, 7], "expires_seconds": 9, "on_expiry": on_expiry}
    if output is not None:
        wait["default"] = output
    run = simulate({"nodes": {"best": {"human": wait}}}, None, {"best": expire})
    assert (run.nodes["best"].state, run.nodes["best"].output) == (state, output)
