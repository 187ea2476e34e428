"""The JSON of a definition, field by field. `workflows.definition.read` checks the fields against each other,
and `workflows.definition.literals` their values against the limits in the settings. No such limit is here,
so that a stored definition stays readable when an operator lowers one."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from foundation.http_api.json_body import (
    Body,
    Choice,
    Items,
    JsonObject,
    Name,
    Whole,
    about,
    choices,
)
from workflows.domain.plan import NeedsRule, NodeKind, RunningOnFailure

NODE_NAME = r"^[a-z_][a-z0-9_]{0,63}$"
FAIL, SKIP, DEFAULT = "fail", "skip", "default"

NodeName = Annotated[str, Field(pattern=NODE_NAME)]
_Seconds = Annotated[float, Field(gt=0)]
_KeyName = Annotated[str, Field(min_length=1, max_length=50)]


class Wait(Body):
    """The expiry, which waits for answers and signals have."""

    expires_seconds: Annotated[_Seconds | None, about("Counts from the moment at which the wait begins.")] = (
        None
    )
    on_expiry: Annotated[
        Annotated[str, Choice(FAIL, SKIP, DEFAULT)] | None,
        about("The node fails, is skipped, or completes with `default`."),
    ] = None
    default: Any = None


class Human(Wait):
    """A choice or a form for a person."""

    title: Annotated[str, about("The question.")]
    choose_from: Annotated[Any, about("A list, often a reference: the answer is one of its items.")] = None
    form: Annotated[
        JsonObject | bool | None, about("JSON Schema (2020-12) of the answer, in place of `choose_from`.")
    ] = None
    answer_by: Annotated[
        Annotated[list[_KeyName], Items(least=1, unique=True)] | None,
        about("Names of the API keys that may answer. Default: all of the tenant. Operators always may."),
    ] = None


class Signal(Wait):
    """A named event from outside: its body is the node's output."""

    name: Name
    body_schema: Annotated[JsonObject | bool | None, about("JSON Schema (2020-12) of the body.")] = None


class Timer(Body):
    """A pause of so many seconds, or until a time; either may be a reference."""

    seconds: Any = None
    until: Any = None


class Cache(Body):
    """Takes the result of an earlier job with the same model, configuration and payload, if there is one."""

    ttl_seconds: Annotated[_Seconds, about("How long a result may be taken, from the job's end.")]


class Map(Body):
    """Runs the node once for each item of a list: `item` and `index` are names in its references."""

    over: Annotated[Any, about("A list, or a reference to one.")] = None
    count: Annotated[Any, about("In place of `over`: the number of children; `index` counts from 0.")] = None
    max_parallel: Annotated[Annotated[int, Whole(1)] | None, about("Most children at once.")] = None
    fail_at: Annotated[
        float | None,
        about("Failed children with which the node fails: a number, or a share of all below 1. Default 1."),
    ] = None


class NodeBody(Body):
    """A node. It has one of `model`, `human`, `signal`, `timer` and `workflow`; `map` repeats it."""

    model: Name | None = None
    payload: Annotated[Any, about("What the model gets: JSON with references.")] = None
    max_retries: Annotated[int, Whole(0, 100_000)] | None = None
    max_run_seconds: _Seconds | None = None
    cache: Cache | None = None
    near: Annotated[
        NodeName | None,
        about(
            "A model node before this one: its server is tried first, for a while, as its files are there."
        ),
    ] = None

    workflow: Name | None = None
    version: Annotated[int, Whole(1)] | None = None
    inputs: Annotated[Any, about("Inputs of the sub-workflow: JSON with references.")] = None

    human: Human | None = None
    signal: Signal | None = None
    timer: Timer | None = None

    map: Map | None = None
    when: Annotated[str | None, about("JMESPath; the node is skipped where it is false.")] = None
    needs: Annotated[
        Annotated[list[NodeName], Items(unique=True)] | None,
        about("Nodes that must end first, besides those in references."),
    ] = None
    needs_rule: Annotated[str, choices(NeedsRule)] | None = None


class OnFailure(Body):
    running: Annotated[
        Annotated[str, choices(RunningOnFailure)] | None,
        about("`finish`: nodes that do not depend on the failure go on; `cancel`: all others are cancelled."),
    ] = None
    node: Annotated[NodeName | None, about("Runs after the others when the run fails; may use `error`.")] = (
        None
    )


class Definition(Body):
    """A workflow."""

    name: Name | None = None
    description: str | None = None
    inputs: Annotated[JsonObject | bool | None, about("JSON Schema (2020-12) of a run's inputs.")] = None
    nodes: Annotated[dict[NodeName, NodeBody], Field(min_length=1)]
    output: Annotated[Any, about("The run's output: JSON with references. Default: null.")] = None
    on_failure: OnFailure | None = None


def settings_path(key: str, kind: NodeKind) -> tuple[str, ...]:
    """Return the path of a node's settings: beside `model` or `workflow`, else in the object of its kind."""
    path = ("nodes", key)
    return path if kind in (NodeKind.MODEL, NodeKind.WORKFLOW) else (*path, kind.value)
