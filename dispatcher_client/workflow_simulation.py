"""Runs a workflow definition in this process, with functions in place of models, people and signals.

For unit tests of a workflow: no server, no GPU, no clock. It is a second, naive reading of the rules; the
dispatcher's own tests compare it with what the dispatcher does. It needs the package `jmespath`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from graphlib import TopologicalSorter
from typing import Any

from .workflow_values import (
    BadValue,
    check_choices,
    check_items,
    check_payload,
    check_timer,
    child_count,
    same_value,
)

Fake = Callable[[Any], Any]
Scope = dict[str, Any]
COMPLETED, FAILED, SKIPPED, CANCELLED = "completed", "failed", "skipped", "cancelled"
MAX_REASON = 500
"""Most characters of a node's error in that of its run."""


class Failure(Exception):
    """Raised by a fake: the node fails with this message. code: of its error; by default ``run_failed`` of a
    model, and ``node_failed`` of a workflow; an expired wait has none."""

    def __init__(self, message: str = "", code: str | None = None) -> None:
        super().__init__(message)
        self.code = code


class Expired(Failure):
    """Raised by a fake of a person or signal: no answer came in time, and the node ends by its
    ``on_expiry``."""


class _Skipped(Exception):
    """A wait expired whose node is skipped then."""


@dataclass(frozen=True)
class SimulatedNode:
    """How a node ended. output: JSON; None unless it completed. error: text for people. code: of the
    error."""

    state: str
    output: Any = None
    error: str = ""
    code: str = ""


@dataclass(frozen=True)
class SimulatedRun:
    """How a run ended. calls: node and input of each call of a fake, in the order of the calls. error:
    ``node``, ``code`` and ``message`` as the node of `on_failure` gets them; None unless it failed."""

    state: str
    output: Any
    nodes: Mapping[str, SimulatedNode]
    failed_node: str | None = None
    calls: tuple[tuple[str, Any], ...] = ()
    error: Mapping[str, Any] | None = None


def simulate(
    definition: Mapping[str, Any],
    inputs: Any = None,
    fakes: Mapping[str, Fake] | None = None,
    files: Mapping[str, str] | None = None,
) -> SimulatedRun:
    """Run a definition to its end.

    fakes: by the name of a node, else of its model or workflow: a function that gets the resolved payload
    (``model``), inputs (``workflow``), or what a person or signal is asked for (``human``, ``signal``), and
    returns the output. It may raise `Failure`, that of a wait `Expired`. Timers complete at once. One node
    runs after the other: with ``running: cancel`` those after the first failure are cancelled. files: JSON
    lines by the id of their artifact, for maps over them.
    Returns the ends of the run and of all its nodes. Raises LookupError for a node without a fake, or an
    artifact without a file; ValueError for what the dispatcher refuses: a node whose values would always fail
    it, inputs that lack a required one, and an answer that is none of the choices.
    """
    for key, node in definition["nodes"].items():
        _check_literals(f"/nodes/{key}", node)
    required = (definition.get("inputs") or {}).get("required") or ()
    given = inputs if isinstance(inputs, dict) else {}
    if missing := [name for name in required if name not in given]:
        raise ValueError(f"the inputs lack {', '.join(missing)}, which the workflow requires")
    return _Simulation(definition, inputs, fakes or {}, files or {}).run()


@dataclass
class _Simulation:
    definition: Mapping[str, Any]
    inputs: Any
    fakes: Mapping[str, Fake]
    files: Mapping[str, str]
    ends: dict[str, SimulatedNode] = field(default_factory=dict)
    calls: list[tuple[str, Any]] = field(default_factory=list)
    first_failed: str = ""
    """For which the others are cancelled."""

    def run(self) -> SimulatedRun:
        on_failure = self.definition.get("on_failure") or {}
        handler = on_failure.get("node")
        for key in self.definition["nodes"]:
            if key != handler:
                self.end_of(key)
        failures, output = self.failures(), None
        error: dict[str, Any] | None = None
        if failures:
            failed = self.first_failed or self.cause(failures[0])
            error = {"node": failed, "code": "node_failed", "message": self.reason(failed, failures)}
        else:
            try:
                output = self.resolve(self.definition.get("output"), self.scope(), ("output",))
            except _Unresolved as unresolved:
                error = {"node": None, "code": unresolved.code, "message": unresolved.with_place()}
        if error is None:
            if handler is not None:
                self.ends[handler] = SimulatedNode(SKIPPED)
            return SimulatedRun(COMPLETED, output, self.ends, None, tuple(self.calls))
        if handler is not None:
            self.ends[handler] = self.started(handler, {**self.scope(), "error": error})
        return SimulatedRun(FAILED, None, self.ends, error["node"], tuple(self.calls), error)

    def failures(self) -> list[str]:
        """Return the nodes whose failure fails the run: those that failed or never started, unless all nodes
        that need them run in spite of that. Failed ones come before those that never started, each after the
        nodes that it needs."""
        keys = self.in_order()
        needing = {key: [other for other in keys if key in self.needs(other)] for key in keys}
        guilty = [
            key
            for key in keys
            if key in self.ends
            and self.ends[key].state in (FAILED, CANCELLED)
            and not (
                needing[key] and all(self.rule(one) in ("all_done", "any_success") for one in needing[key])
            )
        ]
        return sorted(guilty, key=lambda key: self.ends[key].state == CANCELLED)

    def cause(self, key: str) -> str:
        """Return the node that failed, for a node that did not start because of it."""
        while self.ends[key].state == CANCELLED:
            bad = [need for need in self.in_order() if need in self.needs(key)]
            bad = [need for need in bad if self.ends[need].state in (FAILED, CANCELLED)]
            key = min(bad, key=lambda need: self.ends[need].state == CANCELLED)
        return key

    def reason(self, failed: str, failures: list[str]) -> str:
        """Return the message of a run that this node fails, the first of these failures or before it."""
        first = self.ends[failed]
        why = ": ".join(filter(None, [first.code, " ".join(first.error.split())]))
        why = why if len(why) <= MAX_REASON else f"{why[: MAX_REASON - 1]}…"
        found = f"{failed} failed: {why}" if why else f"{failed} failed"
        more = [key for key in failures if key != failed and self.ends[key].state == FAILED]
        if more:
            found += f" ({len(more)} more {'node' if len(more) == 1 else 'nodes'} failed)"
        return found

    def rule(self, key: str) -> str:
        return self.definition["nodes"][key].get("needs_rule") or "all_success"

    def needs(self, key: str) -> set[str]:
        """Return the nodes that a node names: in `needs`, `when`, and in references."""
        node = self.definition["nodes"][key]
        names = set(node.get("needs") or ())
        if node.get("when"):
            names |= _names_in(node["when"])
        for name in ("payload", "inputs", "map", "timer"):
            names |= _names(node.get(name))
        names |= _names((node.get("human") or {}).get("choose_from"))
        return {key for key in self.definition["nodes"] if key in names}

    def end_of(self, key: str) -> SimulatedNode:
        """Return the end of a node, after those that it needs."""
        if key not in self.ends:
            needed = {need: self.end_of(need).state for need in sorted(self.needs(key))}
            self.ends[key] = self.unmet(key, needed) or self.cancelled() or self.started(key, self.scope())
        return self.ends[key]

    def cancelled(self) -> SimulatedNode | None:
        """Return the end of a node that a failure keeps from starting, with ``running: cancel``."""
        on_failure = self.definition.get("on_failure") or {}
        if on_failure.get("running") != "cancel":
            return None
        if not self.first_failed and (failures := self.failures()):
            self.first_failed = self.cause(failures[0])
        if not self.first_failed:
            return None
        return SimulatedNode(CANCELLED, error=f"{self.first_failed} failed", code="run_failed")

    def in_order(self) -> list[str]:
        """Return the nodes, each after those that it needs, without that of `on_failure`."""
        handler = (self.definition.get("on_failure") or {}).get("node")
        needs = {key: sorted(self.needs(key)) for key in self.definition["nodes"] if key != handler}
        return list(TopologicalSorter(needs).static_order())

    def unmet(self, key: str, needed: Mapping[str, str]) -> SimulatedNode | None:
        """Return the end of a node that its rule keeps from running. needed: the states of what it needs."""
        bad = [need for need, state in needed.items() if state in (FAILED, CANCELLED)]
        completed = COMPLETED in needed.values()
        good = {
            "all_done": True,
            "any_success": completed,
            "none_failed": not bad,
            "all_success": not bad and completed,
        }[self.rule(key)]
        if good or not needed:
            return None
        if not bad:
            return SimulatedNode(SKIPPED)
        why = f"it needs {bad[0]}, which did not complete"
        return SimulatedNode(CANCELLED, error=why, code="needs_unmet")

    def scope(self) -> Scope:
        outputs = {key: end.output for key, end in self.ends.items()}
        return {"inputs": self.inputs, "run": {"id": "simulated"}, **outputs}

    def started(self, key: str, scope: Scope) -> SimulatedNode:
        node = self.definition["nodes"][key]
        try:
            if node.get("when") and _is_false(_search(node["when"], scope, "when")):
                return SimulatedNode(SKIPPED)
            if node.get("map"):
                return self.mapped(key, node, scope)
            return SimulatedNode(COMPLETED, self.called(key, node, scope))
        except _Unresolved as error:
            return SimulatedNode(FAILED, error=error.with_place(), code=error.code)
        except (Failure, BadValue) as failure:
            return SimulatedNode(FAILED, error=str(failure), code=_code_of(failure, node))
        except _Skipped:
            return SimulatedNode(SKIPPED)

    def mapped(self, key: str, node: Mapping[str, Any], scope: Scope) -> SimulatedNode:
        if "count" in node["map"]:
            items = list(range(child_count(self.resolve(node["map"]["count"], scope, ("map", "count")))))
        else:
            items = self.items(self.resolve(node["map"]["over"], scope, ("map", "over")))
            check_items(items)
        named: list[Scope] = [{"index": index} for index in range(len(items))]
        if "count" not in node["map"]:
            named = [{"item": item, "index": index} for index, item in enumerate(items)]
        limit = node["map"].get("fail_at", 1)
        most = max(1, math.ceil(limit * len(items))) if limit < 1 else limit
        outputs, failed, first = list[Any](), 0, ""
        for names in named:
            try:
                outputs.append(self.called(key, node, {**scope, **names}))
            except _Skipped:
                outputs.append(None)
            except (_Unresolved, Failure, BadValue) as error:
                failed += 1
                code = _code_of(error, node)
                why = ": ".join(filter(None, [code, str(error)]))
                if why and failed == 1:
                    first = f"; {key}[{names['index']}] failed: {why}"
                if failed >= most:
                    text = f"{failed} of {len(items)} items failed{first}"
                    return SimulatedNode(FAILED, error=text, code="map_failed")
                outputs.append(None)
        return SimulatedNode(COMPLETED, outputs)

    def items(self, found: Any) -> Any:
        """Return the items of a map: what its `over` selects, or the lines of that artifact."""
        if not isinstance(found, dict) or found.keys() != {"$artifact"}:
            return found
        if (text := self.files.get(found["$artifact"])) is None:
            raise LookupError(f"there is no file for the artifact {found['$artifact']}; give files[…]")
        items = []
        for number, line in enumerate(text.split("\n"), start=1):
            try:
                items += [json.loads(line)] if line.strip() else []
            except ValueError as error:
                why = f"line {number}: it is not JSON that can be read: {error}"
                raise Failure(why, "bad_line") from None
        return items

    def called(self, key: str, node: Mapping[str, Any], scope: Scope) -> Any:
        """Return the output of a fake."""
        if "timer" in node:
            check_timer(self.resolve(node["timer"], scope, ()))
            return None
        if "model" in node:
            asked = self.resolve(node.get("payload", {}), scope, ("payload",))
            check_payload(asked)
        elif "workflow" in node:
            asked = self.resolve(node.get("inputs", {}), scope, ("inputs",))
        else:
            asked = dict(node.get("human") or node["signal"])
            if "choose_from" in asked:
                asked["choose_from"] = self.resolve(asked["choose_from"], scope, ("choose_from",))
                check_choices(asked["choose_from"])
        names = [key, node.get("model", ""), node.get("workflow", "")]
        fake = next((self.fakes[name] for name in names if name in self.fakes), None)
        if fake is None:
            raise LookupError(f"there is no fake for the node {key}; give fakes[{key!r}]")
        choices = asked.get("choose_from") if "human" in node else None
        self.calls.append((key, asked))
        try:
            answer = fake(asked)
        except Expired:
            if asked.get("on_expiry") == "skip":
                raise _Skipped from None
            if asked.get("on_expiry") != "default":
                raise
            return asked["default"]
        if choices is not None and not any(same_value(answer, choice) for choice in choices):
            raise ValueError(f"the fake of {key} answers {answer!r}, which is none of the choices {choices}")
        return answer

    def resolve(self, template: Any, scope: Scope, path: tuple[object, ...]) -> Any:
        """Return a template with its references resolved. path: its place in the node, or in the run."""
        if isinstance(template, list):
            return [self.resolve(part, scope, (*path, index)) for index, part in enumerate(template)]
        if not isinstance(template, dict):
            return template
        if "$literal" in template:
            return template["$literal"]
        if "$ref" not in template:
            return {name: self.resolve(part, scope, (*path, name)) for name, part in template.items()}
        place = "".join(f"/{part}" for part in path)
        found = _search(template["$ref"], scope, place)
        if found is None and "default" not in template:
            raise _Unresolved(
                f"{template['$ref']} is null or selects nothing, and the reference has no default", place
            )
        return template["default"] if found is None else found


class _Unresolved(Exception):
    """A reference without a default that selects nothing. place: of it."""

    code = "unresolved_ref"

    def __init__(self, why: str, place: str) -> None:
        super().__init__(why)
        self.place = place

    def with_place(self) -> str:
        return f"{self.place}: {self}"


def _check_literals(place: str, node: Mapping[str, Any]) -> None:
    """Check the parts of a node that have no references. Raises ValueError."""
    parts: list[tuple[str, Any, Callable[[Any], object]]] = []
    if "model" in node:
        parts.append(("payload", node.get("payload", {}), check_payload))
    if "timer" in node:
        parts.append(("timer", node["timer"], check_timer))
    repeated = node.get("map") or {}
    if "count" in repeated:
        parts.append(("map/count", repeated["count"], child_count))
    if "over" in repeated:
        parts.append(("map/over", repeated["over"], _check_over))
    human = node.get("human") or {}
    if "choose_from" in human:
        parts.append(("human/choose_from", human["choose_from"], check_choices))
    literal = _Simulation({}, None, {}, {})
    for part, template, check in parts:
        if _has_references(template):
            continue
        try:
            value = literal.resolve(template, {}, ())
            check(value)
        except BadValue as error:
            raise ValueError(f"{place}/{part}: {error.code}: {error}") from None
        default = human.get("default") if check is check_choices else None
        if default is not None and not any(same_value(default, choice) for choice in value):
            raise ValueError(f"{place}/human/default is none of the choices")


def _check_over(value: Any) -> None:
    if not isinstance(value, dict) or value.keys() != {"$artifact"}:
        check_items(value)


def _has_references(template: Any) -> bool:
    if isinstance(template, list):
        return any(map(_has_references, template))
    if not isinstance(template, dict) or "$literal" in template:
        return False
    return "$ref" in template or any(map(_has_references, template.values()))


def _code_of(failure: Failure | BadValue | _Unresolved, node: Mapping[str, Any]) -> str:
    """Return the code with which the dispatcher fails a node."""
    if failure.code is not None:
        return failure.code
    return "run_failed" if "model" in node else "node_failed" if "workflow" in node else ""


def _search(text: str, scope: Scope, place: str) -> Any:
    import jmespath

    try:
        return jmespath.search(text, scope)
    except (jmespath.exceptions.JMESPathError, TypeError) as error:
        raise _Unresolved(str(error) if place == "when" else f"{text}: {error}", place) from None


def _is_false(value: Any) -> bool:
    return value is None or value is False or value in ("", [], {})


def _names(template: Any) -> set[str]:
    """Return the names with which the references of a template begin."""
    if isinstance(template, list):
        return set().union(*map(_names, template))
    if not isinstance(template, dict) or "$literal" in template:
        return set()
    if "$ref" in template:
        return _names_in(template["$ref"])
    return set().union(*map(_names, template.values()))


def _names_in(text: str) -> set[str]:
    """Return the fields that an expression reads from its root."""
    import jmespath

    def fields(node: Any) -> set[str]:
        if node["type"] == "field":
            return {node["value"]}
        parts = [child for child in node["children"] if isinstance(child, dict)]
        if node["type"] in ("comparator", "or_expression", "and_expression", "not_expression", "flatten"):
            return set().union(*map(fields, parts))
        if node["type"] == "function_expression":
            return set().union(*map(fields, parts))
        return fields(parts[0]) if parts else set()

    return fields(jmespath.compile(text).parsed)
