"""Reads a definition: JSON → `Plan`. All errors are reported at once, each with its place."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from typing import Any

from foundation.expressions import NO_LIMITS, Expression, ExpressionLimits, ExpressionRefused, expression
from foundation.foreign_schema import SchemaRefused, compiled
from foundation.http_api.json_body import pointer_to, read_body
from foundation.http_api.problems import FieldError, validation_problem
from foundation.json_text import canonical_json
from workflows.definition.body import DEFAULT, Definition, Human, NodeBody, Signal, Wait, settings_path
from workflows.definition.limits import Limits
from workflows.definition.literals import literal_errors
from workflows.definition.outside import Outside
from workflows.definition.result_paths import is_ruled_out, path_of
from workflows.domain.plan import (
    ERROR,
    INDEX,
    INPUTS,
    ITEM,
    RESERVED_NAMES,
    RUN,
    MapSpec,
    NeedsRule,
    NodeKind,
    NodeSpec,
    Plan,
    RunningOnFailure,
)
from workflows.domain.template import Path, Reference, TemplateError, references

_KIND_FIELDS: dict[NodeKind, frozenset[str]] = {
    NodeKind.MODEL: frozenset({"payload", "max_retries", "max_run_seconds", "cache", "near"}),
    NodeKind.WORKFLOW: frozenset({"version", "inputs"}),
    NodeKind.HUMAN: frozenset(),
    NodeKind.SIGNAL: frozenset(),
    NodeKind.TIMER: frozenset(),
}
_COMMON_FIELDS = frozenset({"map", "when", "needs", "needs_rule"})


def read_definition(value: Any, *, limits: Limits | None = None, outside: Outside | None = None) -> Plan:
    """Return the plan of a definition. limits: of one that is to be stored, whose literal values are checked
    too; None: it is stored, maybe under other limits. outside: what it refers to; None: any models and
    workflows. Raises Problem 422."""
    size = len(canonical_json(value).encode()) if limits is not None and isinstance(value, dict) else 0
    if limits is not None and size > limits.max_bytes:
        _refuse(
            "",
            "too_large",
            f"A definition may have up to {limits.max_bytes} bytes (DISPATCHER_WORKFLOW_BYTES), "
            f"not {size}. Move large values to the inputs or to artifacts, and parts of the graph to "
            "sub-workflows.",
        )
    body = read_body(Definition, value)
    if limits is not None and len(body.nodes) > limits.nodes:
        _refuse(
            "/nodes",
            "too_many",
            f"A definition may have up to {limits.nodes} nodes (DISPATCHER_WORKFLOW_NODES), "
            f"not {len(body.nodes)}. Use a map for nodes that differ only in their data, or sub-workflows.",
        )
    outside = Outside() if outside is None else outside
    reader = _Reader(body, outside, NO_LIMITS if limits is None else limits.expressions)
    plan, errors = reader.plan(), reader.errors
    if limits is not None:
        errors += literal_errors(body, plan, limits, outside)
    if errors:
        raise validation_problem(sorted(errors, key=lambda error: error.pointer))
    return plan


def _refuse(pointer: str, code: str, text: str) -> None:
    raise validation_problem([FieldError(pointer, code, text)])


@dataclass
class _Reader:
    """Reads one definition."""

    body: Definition
    outside: Outside
    expressions: ExpressionLimits
    errors: list[FieldError] = field(default_factory=list)

    def plan(self) -> Plan:
        """Return the plan; one that can't run if there are errors."""
        on_failure = self.body.on_failure
        handler_key = on_failure.node if on_failure is not None else None
        if handler_key is not None and handler_key not in self.body.nodes:
            self._error(("on_failure", "node"), "unknown_node", f"There is no node {handler_key}.")
        if self.body.inputs is not None:
            self._check_schema(self.body.inputs, ("inputs",))
        nodes = {
            key: self._node(key, node, is_handler=key == handler_key) for key, node in self.body.nodes.items()
        }
        handler = nodes.pop(handler_key, None) if handler_key is not None else None
        for _ in self._references(self.body.output, ("output",), allowed=nodes.keys() | {INPUTS, RUN}):
            pass
        ordered = self._ordered(nodes, handler_key)
        if not self.errors:
            self._check_near(ordered, handler)
        running = on_failure.running if on_failure is not None else None
        return Plan(
            nodes=ordered,
            output=self.body.output,
            running_on_failure=RunningOnFailure(running or RunningOnFailure.FINISH),
            on_failure=handler,
            inputs=True if self.body.inputs is None else self.body.inputs,
        )

    def _node(self, key: str, node: NodeBody, *, is_handler: bool) -> NodeSpec:
        path: Path = ("nodes", key)
        if key in RESERVED_NAMES:
            self._error(path, "reserved_name", f"{key} is reserved; give the node another name.")
        kind = self._kind(node, path)
        names = self.body.nodes.keys() | {INPUTS, RUN}
        outer = names | ({ERROR} if is_handler else set())
        inner = outer | ({ITEM, INDEX} if node.map is not None else set())
        settings, options = _parts(kind, node)
        needs: set[str] = set()
        for part, template in settings.items():
            needs |= self._references(template, (*settings_path(key, kind), part), allowed=inner)
        when = self._when(node, path, outer)
        if when is not None:
            needs |= when.names
        map_spec = None
        if node.map is not None:
            map_spec, map_needs = self._map(node, (*path, "map"), outer)
            needs |= map_needs
        for index, need in enumerate(node.needs or ()):
            if need not in self.body.nodes:
                self._error((*path, "needs", index), "unknown_node", f"There is no node {need}.")
        needs |= set(node.needs or ())
        needs &= self.body.nodes.keys()
        if key in needs:
            self._error(path, "cycle", f"The node {key} needs itself.")
            needs.discard(key)
        if is_handler:
            if node.needs or node.map is not None:
                self._error(path, "not_allowed", "The on_failure node has neither needs nor map.")
            needs.clear()
        return NodeSpec(
            key=key,
            kind=kind,
            settings=settings,
            options=options,
            needs=frozenset(needs),
            rule=NeedsRule(node.needs_rule or NeedsRule.ALL_SUCCESS),
            when=when,
            map=map_spec,
        )

    def _kind(self, node: NodeBody, path: Path) -> NodeKind:
        found = [kind for kind in NodeKind if getattr(node, kind.value) is not None]
        if len(found) != 1:
            names = ", ".join(NodeKind)
            self._error(path, "invalid", f"A node has exactly one of {names}.")
            return found[0] if found else NodeKind.TIMER
        kind = found[0]
        allowed = _KIND_FIELDS[kind] | _COMMON_FIELDS | {kind.value}
        for name in sorted(node.model_fields_set - allowed):
            if getattr(node, name) is not None:
                self._error((*path, name), "not_allowed", f"A {kind} node has no {name}.")
        if kind is NodeKind.MODEL and node.model is not None and not self.outside.has_model(node.model):
            why = f"There is no model {node.model}. `GET /api/v1/me` lists the models that you may use."
            self._error((*path, "model"), "unknown_model", why)
        if kind is NodeKind.HUMAN and node.human is not None:
            self._check_human(node.human, (*path, "human"))
        if kind is NodeKind.SIGNAL and node.signal is not None:
            self._check_signal(node.signal, (*path, "signal"))
        if node.timer is not None and (node.timer.seconds is None) == (node.timer.until is None):
            self._error((*path, "timer"), "invalid", "A timer has either seconds or until.")
        return kind

    def _check_human(self, human: Human, path: Path) -> None:
        if (human.choose_from is None) == (human.form is None):
            self._error(path, "invalid", "A human node has either choose_from or form.")
        if human.form is not None:
            self._check_schema(human.form, (*path, "form"))
        self._check_expiry(human, path)

    def _check_signal(self, signal: Signal, path: Path) -> None:
        if signal.body_schema is not None:
            self._check_schema(signal.body_schema, (*path, "body_schema"))
        self._check_expiry(signal, path)

    def _check_expiry(self, wait: Wait, path: Path) -> None:
        if wait.on_expiry is not None and wait.expires_seconds is None:
            self._error((*path, "on_expiry"), "invalid", "on_expiry needs expires_seconds.")
        if (wait.default is not None) != (wait.on_expiry == DEFAULT):
            self._error(
                (*path, "default"), "invalid", "A default belongs to on_expiry: default, which needs one."
            )

    def _check_schema(self, schema: Mapping[str, Any] | bool, path: Path) -> None:
        try:
            compiled(schema)
        except SchemaRefused as error:
            self._error((*path, *error.path), "invalid_schema", str(error))

    def _map(self, node: NodeBody, path: Path, allowed: Collection[str]) -> tuple[MapSpec, set[str]]:
        assert node.map is not None
        found = node.map
        if (found.over is None) == (found.count is None):
            self._error(path, "invalid", "A map has either over or count.")
        needs = self._references(found.over, (*path, "over"), allowed=allowed)
        needs |= self._references(found.count, (*path, "count"), allowed=allowed)
        fail_at = found.fail_at if found.fail_at is not None else 1
        if isinstance(fail_at, float) and fail_at.is_integer() and fail_at >= 1:
            fail_at = int(fail_at)
        if fail_at <= 0 or (isinstance(fail_at, float) and fail_at >= 1):
            self._error(
                (*path, "fail_at"),
                "out_of_range",
                "fail_at is a whole number from 1, or a share between 0 and 1.",
            )
        default = MapSpec()
        spec = MapSpec(found.over, found.count, found.max_parallel or default.max_parallel, fail_at)
        return spec, needs

    def _when(self, node: NodeBody, path: Path, allowed: Collection[str]) -> Expression | None:
        if node.when is None:
            return None
        path = (*path, "when")
        try:
            found = expression(node.when, self.expressions)
        except ExpressionRefused as error:
            self._error(path, "invalid_expression", f"{error}.")
            return None
        if found.reads_root:
            self._error(path, "invalid_expression", "An expression begins with a name: inputs, or a node.")
        self._check_names(found.names, path, allowed)
        return found

    def _references(self, template: Any, path: Path, *, allowed: Collection[str]) -> set[str]:
        """Check the references of a template; return the names that they begin with."""
        names: set[str] = set()
        for found in references(template, path, self.expressions):
            if isinstance(found, TemplateError):
                self._error(found.path, "invalid_expression", f"{found}.")
            else:
                self._check_names(found.expression.names, found.path, allowed)
                self._check_result(found)
                names |= found.expression.names
        return names

    def _check_result(self, found: Reference) -> None:
        """Check a path into a node's output against the `result_schema` of its model. One with a default may
        select nothing."""
        steps = path_of(found.expression)
        if not steps or found.has_default:
            return
        node = self.body.nodes.get(str(steps[0]))
        if node is None or node.model is None:
            return
        path = steps[1:]
        if node.map is not None:  # a list of results
            if not path or not isinstance(path[0], int):
                return
            path = path[1:]
        if is_ruled_out(self.outside.result_schema(node.model), path):
            text = f"No result of the model {node.model} has a value at this path, by its result_schema."
            self._error(found.path, "unknown_ref", text)

    def _check_names(self, names: Collection[str], path: Path, allowed: Collection[str]) -> None:
        for name in sorted(
            names - set(allowed) if isinstance(names, frozenset) else set(names) - set(allowed)
        ):
            if name in (ITEM, INDEX):
                text = f"{name} exists only in a node with a map."
            elif name == ERROR:
                text = "error exists only in the on_failure node."
            else:
                text = f"There is no node {name[:64]}."
            self._error(path, "unknown_ref", text)

    def _ordered(self, nodes: dict[str, NodeSpec], handler_key: str | None) -> dict[str, NodeSpec]:
        """Return the nodes, each after those that it needs."""
        if handler_key is not None:
            for node in nodes.values():
                if handler_key in node.needs:
                    self._error(
                        ("nodes", node.key),
                        "not_allowed",
                        f"{handler_key} runs only on failure: no node can need it.",
                    )
                    return nodes
        try:
            order = TopologicalSorter(
                {node.key: sorted(node.needs) for node in nodes.values()}
            ).static_order()
            return {key: nodes[key] for key in order}
        except CycleError as error:
            cycle = " → ".join(reversed(error.args[1]))
            self._error(("nodes", error.args[1][0]), "cycle", f"These nodes need each other: {cycle[:200]}.")
            return nodes

    def _check_near(self, nodes: Mapping[str, NodeSpec], handler: NodeSpec | None) -> None:
        """Check that each `near` names a model node that has ended before the node starts."""
        for node in (*nodes.values(), *([handler] if handler is not None else ())):
            near = node.options.get("near")
            if near is None:
                continue
            path, other = ("nodes", node.key, "near"), nodes.get(near)
            if near == node.key:
                self._error(path, "invalid", "A node can't be near itself.")
            elif other is None:
                self._error(path, "unknown_node", f"There is no node {near}.")
            elif other.kind is not NodeKind.MODEL:
                self._error(path, "invalid", f"near names a model node; {near} is a {other.kind} node.")
            elif other.map is not None and node.map is None:
                self._error(
                    path, "invalid", f"{near} is a map: only the items of another map can be near its items."
                )
            elif node is not handler and near not in _ancestors(nodes, node):
                self._error(
                    path, "invalid", f"near names a node that ends before: {node.key} does not need {near}."
                )

    def _error(self, path: Path, code: str, text: str) -> None:
        self.errors.append(FieldError(pointer_to(*path), code, text))


def _parts(kind: NodeKind, node: NodeBody) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a node's template and its fixed options."""
    if kind is NodeKind.MODEL:
        options = _given(node, "model", "max_retries", "max_run_seconds", "near")
        if node.cache is not None:
            options["cache_seconds"] = node.cache.ttl_seconds
        return {"payload": {} if node.payload is None else node.payload}, options
    if kind is NodeKind.WORKFLOW:
        return {"inputs": {} if node.inputs is None else node.inputs}, _given(node, "workflow", "version")
    if kind is NodeKind.HUMAN and node.human is not None:
        human = node.human
        return _given(human, "choose_from"), _given(human, "title", "form", "answer_by", *Wait.model_fields)
    if kind is NodeKind.SIGNAL and node.signal is not None:
        return {}, _given(node.signal, "name", "body_schema", *Wait.model_fields)
    if node.timer is not None:
        return _given(node.timer, "seconds", "until"), {}
    return {}, {}


def _ancestors(nodes: Mapping[str, NodeSpec], node: NodeSpec) -> set[str]:
    """Return the nodes that a node needs, and all that these need."""
    found: set[str] = set()
    left = list(node.needs)
    while left:
        key = left.pop()
        if key not in found:
            found.add(key)
            left += nodes[key].needs
    return found


def _given(body: Any, *names: str) -> dict[str, Any]:
    return {name: value for name in names if (value := getattr(body, name)) is not None}
