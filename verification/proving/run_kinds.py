"""The kinds of runs in the load: their definitions, and the end that each must have. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

LAST_NODE, PERSON, REPORT, SIGNAL = "last", "person", "report", "go"


@dataclass(frozen=True, slots=True)
class RunKind:
    """A kind of runs.

    weight: its share among all kinds. state, code: how each of its rounds ends, unless a client cancels the
    run or a fault explains another end. deadline_seconds: of the run. is_inline: its definition comes with
    the request. is_answered: a client answers its person and sends its signal. is_erased: a client erases its
    data after its end. nodes: the states that its nodes must have then."""

    name: str
    weight: float
    state: str = "completed"
    code: str = ""
    deadline_seconds: float | None = None
    is_inline: bool = False
    is_answered: bool = False
    is_erased: bool = False
    nodes: tuple[tuple[str, str], ...] = ()


FILM = RunKind("film", 0.4, nodes=((LAST_NODE, "completed"),))
FAILS = RunKind("fails", 0.15, "failed", "node_failed", nodes=((PERSON, "cancelled"), (REPORT, "completed")))
HURRIES = RunKind(
    "hurries",
    0.1,
    "failed",
    "deadline_exceeded",
    deadline_seconds=3.0,
    nodes=((PERSON, "cancelled"), (REPORT, "completed")),
)
ASKS = RunKind("asks", 0.15, is_answered=True, nodes=((LAST_NODE, "completed"),))
INLINE = RunKind("inline", 0.1, is_inline=True, nodes=((LAST_NODE, "completed"),))
ERASED = RunKind("erased", 0.1, is_erased=True, nodes=((LAST_NODE, "completed"),))
KINDS: Mapping[str, RunKind] = {kind.name: kind for kind in (FILM, FAILS, HURRIES, ASKS, INLINE, ERASED)}


def definition(prefix: str, kind: RunKind = FILM) -> dict[str, Any]:
    """Return the definition that all runs of a kind have. prefix: of the models."""
    if kind is FAILS or kind is HURRIES:
        return _failing(prefix, kind)
    first, last = _job(prefix, "image"), _job(prefix, "image", first={"$ref": "first.attempt"})
    if kind is ASKS:
        person = {"human": {"title": "Which?", "choose_from": ["a", "b"]}, "needs": ["first"]}
        signal = {"signal": {"name": SIGNAL}, "needs": [PERSON]}
        answered = {**last, "payload": {**last["payload"], "answer": {"$ref": PERSON}}, "needs": ["signal"]}
        nodes = {"first": first, PERSON: person, "signal": signal, LAST_NODE: answered}
        return {"nodes": nodes, "output": {"answer": {"$ref": PERSON}}}
    both = _job(prefix, "video", index={"$ref": "index"}, first={"$ref": "first.attempt"})
    last["payload"]["all"] = {"$ref": "both[*].attempt"}
    nodes = {"first": first, "both": {**both, "map": {"count": 2}}, LAST_NODE: last}
    return {"nodes": nodes, "output": {"attempt": {"$ref": "last.attempt"}}}


def _failing(prefix: str, kind: RunKind) -> dict[str, Any]:
    """Return a definition whose runs end in failure: by a reference to nothing, beside a job and a person who
    never answers; or by its deadline."""
    nodes = {
        "first": _job(prefix, "image"),
        PERSON: {"human": {"title": "Never answered", "form": {}}},
        REPORT: _job(prefix, "image", failed={"$ref": "error.code"}),
    }
    if kind is FAILS:
        nodes["beside"] = _job(prefix, "video", seconds=5.0)
        nodes["bad"] = _job(prefix, "image", nothing={"$ref": "first.nothing"})
    return {"nodes": nodes, "on_failure": {"running": "cancel", "node": REPORT}}


def _job(prefix: str, model: str, **payload: Any) -> dict[str, Any]:
    common = {"seconds": {"$ref": "inputs.seconds"}, "number": {"$ref": "inputs.number"}}
    return {"model": f"{prefix}-{model}", "payload": {**common, **payload}}
