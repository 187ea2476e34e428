"""Builds the definition of a workflow in Python: nodes are objects, and their outputs references.

`Workflow.definition` is the JSON that the API takes; docs/how-to/build_workflows.md."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, TypedDict, Unpack

from .references import Default, Literal, Reference, WorkflowError, calling_place, refuse
from .workflow_drawing import mermaid
from .workflow_simulation import Fake, SimulatedRun, simulate

RESERVED_NAMES = frozenset({"inputs", "item", "index", "run", "error"})
NEEDS_RULES = ("all_success", "none_failed", "all_done", "any_success")
ON_EXPIRY = ("fail", "skip", "default")
RUNNING_ON_FAILURE = ("finish", "cancel")
_KEY = re.compile(r"[a-z_][a-z0-9_]{0,63}\Z")
_TYPES: dict[Any, str] = {
    str: "string",
    int: "integer",
    float: "number",
    bool: "boolean",
    list: "array",
    dict: "object",
}
_DATA_KEYS = frozenset({"$artifact"})


class NodeOptions(TypedDict, total=False):
    """What every node may have. key: its name in the run; by default made from its model, workflow or kind.
    when: a condition; the node is skipped where it is false. needs: nodes that must end first, besides those
    that it refers to. needs_rule: all_success, none_failed, all_done or any_success."""

    key: str | None
    when: Reference | None
    needs: Sequence[Node]
    needs_rule: str | None


class ModelOptions(NodeOptions, total=False):
    """What a model node may have too. near: a model node before this one, whose server is tried first, for a
    while, because its files are there. cache_seconds: how old the result of an equal job may be, which is
    then taken in place of a new one."""

    max_retries: int | None
    max_run_seconds: float | None
    near: Node | None
    cache_seconds: float | None


class WaitOptions(NodeOptions, total=False):
    """What a wait may have too. on_expiry: fail, skip or default."""

    expires_seconds: float | None
    on_expiry: str | None
    default: Any


class Node(Reference):
    """A node of a workflow, and a reference to its output."""

    def __init__(self, workflow: Workflow, key: str, body: dict[str, Any], needs: frozenset[str], place: str):
        super().__init__(key, names=frozenset({key}), sources=frozenset({workflow}))
        self._key, self._body, self._needs, self._place = key, body, needs, place

    def __repr__(self) -> str:
        return f"<node {self._key}>"


class _Nodes:
    """Adds nodes to a workflow; with a map, nodes that are repeated."""

    _workflow: Workflow
    _map: Map | None = None

    def model(
        self, model: str, payload: Any = None, *, fields: Mapping[str, Any] | None = None, **given: Any
    ) -> Node:
        """Add a job. model: its model. Its payload are the keyword arguments, such as
        ``wf.model("zimg", prompt=wf.inputs.prompt)``, or `payload`: JSON with references. `fields` holds
        those that are named as an option is. The options are those of `ModelOptions`."""
        options, named = _parted(given, ModelOptions)
        body = {"model": model}
        data = _payload("payload", payload, {**(fields or {}), **named})
        return self._workflow._add(self._map, model, body, {"payload": data}, options)

    def human(
        self,
        title: str,
        *,
        choose_from: Any = None,
        form: Mapping[str, Any] | None = None,
        answer_by: Sequence[str] | None = None,
        **options: Unpack[WaitOptions],
    ) -> Node:
        """Ask a person. choose_from: a list, or a reference to one: the answer is one of its items. form:
        JSON Schema of the answer, in its place. answer_by: names of the API keys that may answer; by default
        all may."""
        if (choose_from is None) == (form is None):
            refuse("a human node has either choose_from or form")
        if answer_by is not None and (isinstance(answer_by, str) or not answer_by):
            refuse('answer_by is a list with the names of API keys: ["reviewer"]')
        names = None if answer_by is None else list(answer_by)
        asked = {"title": title, "form": form, "answer_by": names}
        return self._wait("human", asked, {"choose_from": choose_from}, dict(options))

    def signal(
        self, name: str, *, body_schema: Mapping[str, Any] | None = None, **options: Unpack[WaitOptions]
    ) -> Node:
        """Wait for a signal; its body is the output."""
        return self._wait("signal", {"name": name, "body_schema": body_schema}, {}, dict(options))

    def timer(self, *, seconds: Any = None, until: Any = None, **options: Unpack[NodeOptions]) -> Node:
        """Wait so many seconds, or until a time; either may be a reference."""
        if (seconds is None) == (until is None):
            refuse("a timer has either seconds or until")
        parts = {"timer": {"seconds": seconds} if until is None else {"until": until}}
        return self._workflow._add(self._map, "timer", {}, parts, dict(options))

    def workflow(
        self,
        workflow: str,
        inputs: Any = None,
        *,
        version: int | None = None,
        fields: Mapping[str, Any] | None = None,
        **given: Any,
    ) -> Node:
        """Add a sub-run. workflow: a stored one. Its inputs are the keyword arguments, or `inputs`; `fields`
        holds those that are named as an option is. The options are those of `NodeOptions`."""
        options, named = _parted(given, NodeOptions)
        body: dict[str, Any] = {"workflow": workflow} | ({} if version is None else {"version": version})
        data = _payload("inputs", inputs, {**(fields or {}), **named})
        return self._workflow._add(self._map, workflow, body, {"inputs": data}, options)

    def _wait(self, kind: str, fixed: dict[str, Any], parts: dict[str, Any], options: dict[str, Any]) -> Node:
        expires, on_expiry = options.pop("expires_seconds", None), options.pop("on_expiry", None)
        default = options.pop("default", None)
        if on_expiry is not None and on_expiry not in ON_EXPIRY:
            refuse(f"on_expiry is one of {', '.join(ON_EXPIRY)}, not {on_expiry!r}")
        if on_expiry is not None and expires is None:
            refuse("on_expiry needs expires_seconds")
        if (default is not None) != (on_expiry == "default"):
            refuse("a default belongs to on_expiry='default', which needs one")
        fixed |= {"expires_seconds": expires, "on_expiry": on_expiry, "default": default}
        plain = {name: value for name, value in fixed.items() if value is not None}
        return self._workflow._add(self._map, kind, {kind: plain}, {kind: parts}, options)


class Map(_Nodes):
    """Repeats the node that it adds, for each item of a list: ``item`` and ``index`` are references."""

    def __init__(self, workflow: Workflow, body: dict[str, Any]) -> None:
        self._workflow, self._map, self._body = workflow, self, body
        sources = frozenset({workflow, self})
        self.index = Reference("index", names=frozenset({"index"}), sources=sources)
        self._item = Reference("item", names=frozenset({"item"}), sources=sources)

    @property
    def item(self) -> Reference:
        if "count" in self._body:
            refuse("a map by count has an index and no item")
        return self._item


class Workflow(_Nodes):
    """A workflow. inputs: JSON Schema of a run's inputs, or their names with types, all required:
    ``{"prompt": str, "seconds": float}``."""

    def __init__(
        self, name: str, *, inputs: Mapping[str, Any] | bool | None = None, description: str | None = None
    ) -> None:
        self._workflow = self
        self.name, self.description = name, description
        self._schema, fields = _schema_of(inputs)
        sources = frozenset({self})
        self.inputs = Reference("inputs", names=frozenset({"inputs"}), sources=sources, fields=fields)
        self.run = Reference("run", names=frozenset({"run"}), sources=sources)
        """Its ``id`` is the run's."""
        self.error = Reference("error", names=frozenset({"error"}), sources=sources)
        """Of the node of `on_failure` only: ``node``, ``code``, ``message`` of the failure."""
        self._nodes: dict[str, Node] = {}
        self._output: Any = None
        self._on_failure: dict[str, Any] = {}

    def map(
        self,
        over: Any = None,
        *,
        count: Any = None,
        max_parallel: int | None = None,
        fail_at: float | None = None,
    ) -> Map:
        """Return what adds a repeated node: ``wf.map(count=4).model(…)``.

        over: a list, or a reference to one, or to an artifact of JSON lines. count: in its place, a number of
        children. max_parallel: most children at once. fail_at: failed children with which the node fails, a
        number or a share of all."""
        if (over is None) == (count is None):
            refuse("a map has either over or count")
        if max_parallel is not None and max_parallel < 1:
            refuse(f"max_parallel is at least 1, not {max_parallel}")
        if fail_at is not None and not (0 < fail_at < 1 or (fail_at >= 1 and float(fail_at).is_integer())):
            refuse("fail_at is a whole number from 1, or a share between 0 and 1")
        given = {"over": over, "count": count, "max_parallel": max_parallel, "fail_at": fail_at}
        return Map(self, {name: value for name, value in given.items() if value is not None})

    def output(self, value: Any = None, **fields: Any) -> None:
        """Set the run's output: JSON with references, or its fields as keyword arguments."""
        data = _payload("value", value, fields)
        self._output = _Reader(self, None, "the output").read(data, "/output")

    def on_failure(self, node: Node | None = None, *, running: str | None = None) -> None:
        """Set what happens when the run fails. node: runs last, and may refer to ``wf.error``. running:
        ``finish``: nodes that do not depend on the failure go on; ``cancel``: all others are cancelled."""
        if running is not None and running not in RUNNING_ON_FAILURE:
            refuse(f"running is one of {', '.join(RUNNING_ON_FAILURE)}, not {running!r}")
        if node is not None and self._nodes.get(node._key) is not node:
            refuse("on_failure takes a node of this workflow")
        if node is not None and (node._body.get("map") or node._body.get("needs")):
            refuse("the on_failure node has neither needs nor map")
        given = {"running": running, "node": None if node is None else node._key}
        self._on_failure = {name: value for name, value in given.items() if value is not None}

    def definition(self) -> dict[str, Any]:
        """Return the definition as the API takes it. Raises WorkflowError."""
        if not self._nodes:
            refuse(f"the workflow {self.name} has no nodes")
        handler = self._on_failure.get("node")
        for node in self._nodes.values():
            if "error" in node._needs and node._key != handler:
                raise WorkflowError("wf.error exists only in the on_failure node", node._place)
            if handler is not None and handler in node._needs:
                raise WorkflowError(f"{handler} runs only on failure: no node can need it", node._place)
        given: dict[str, Any] = {
            "name": self.name,
            "description": self.description,
            "inputs": self._schema,
            "nodes": {key: node._body for key, node in self._nodes.items()},
            "output": self._output,
            "on_failure": self._on_failure or None,
        }
        found: dict[str, Any] = json.loads(
            json.dumps({name: value for name, value in given.items() if value is not None})
        )
        return found

    @property
    def needs(self) -> dict[str, set[str]]:
        """The nodes that each node needs."""
        handler = self._on_failure.get("node")
        return {
            key: set() if key == handler else set(node._needs & self._nodes.keys())
            for key, node in self._nodes.items()
        }

    def mermaid(self) -> str:
        """Return the workflow as a Mermaid flowchart."""
        return mermaid(self.definition(), self.needs)

    def simulate(
        self,
        fakes: Mapping[str, Fake] | None = None,
        inputs: Any = None,
        *,
        files: Mapping[str, str] | None = None,
    ) -> SimulatedRun:
        """Run the workflow in this process, with functions in place of models, people and signals; see
        `dispatcher_client.workflow_simulation`. Needs the package `jmespath`."""
        return simulate(self.definition(), inputs, fakes, files)

    def _add(
        self,
        repeated: Map | None,
        name: str,
        body: dict[str, Any],
        parts: dict[str, Any],
        options: dict[str, Any],
    ) -> Node:
        """Add a node. name: from which its key is made. body: fixed. parts: fields with references."""
        key = self._new_key(options.get("key"), name)
        reader = _Reader(self, repeated, f"the node {key}")
        outside = _Reader(self, None, f"the node {key}")  # maps and conditions are not repeated
        made: dict[str, Any] = {} if repeated is None else {"map": outside.read(repeated._body, "/map")}
        made |= body
        for field, part in parts.items():
            if field in body:  # a wait: some of its fields have references
                made[field] = {**reader.read(_given(part), f"/{field}"), **_plain(body[field], f"/{field}")}
            elif part is not None:
                made[field] = reader.read(part, f"/{field}")
        for option in ("max_retries", "max_run_seconds"):
            if options.get(option) is not None:
                made[option] = options[option]
        if (seconds := options.get("cache_seconds")) is not None:
            made["cache"] = {"ttl_seconds": seconds}
        if (near := options.get("near")) is not None:
            if not isinstance(near, Node) or self._nodes.get(near._key) is not near:
                refuse("near is a node of this workflow; a payload's field of this name belongs into fields")
            made["near"] = near._key
        if (when := options.get("when")) is not None:
            made["when"] = outside.text_of(when, "when")
        needs = [self._need(one) for one in options.get("needs") or ()]
        if needs:
            made["needs"] = list(dict.fromkeys(needs))
        if (rule := options.get("needs_rule")) is not None:
            if rule not in NEEDS_RULES:
                refuse(f"needs_rule is one of {', '.join(NEEDS_RULES)}, not {rule!r}")
            made["needs_rule"] = rule
        names = frozenset(needs) | reader.names | outside.names
        node = Node(self, key, made, names, calling_place())
        self._nodes[key] = node
        return node

    def _need(self, node: Any) -> str:
        if not isinstance(node, Node) or self._nodes.get(node._key) is not node:
            refuse("needs holds nodes of this workflow")
        return node._key

    def _new_key(self, given: str | None, name: str) -> str:
        if given is None:
            base = re.sub(r"[^a-z0-9_]+", "_", name.lower()).strip("_")[:60] or "node"
            base = f"_{base}" if base[0].isdigit() or base in RESERVED_NAMES else base
            number = 1
            while (key := base if number == 1 else f"{base}_{number}") in self._nodes:
                number += 1
            return key
        if not isinstance(given, str) or not _KEY.match(given):
            refuse(f"a key has 1 to 64 of a-z, 0-9 and _, and begins with a letter or _; not {given!r}")
        if given in RESERVED_NAMES:
            refuse(f"the key {given} is reserved")
        if given in self._nodes:
            refuse(f"there is a node {given} already ({self._nodes[given]._place})")
        return given


class _Reader:
    """Turns values with references into JSON, and collects the names that they begin with."""

    def __init__(self, workflow: Workflow, repeated: Map | None, owner: str) -> None:
        self.workflow, self.repeated, self.owner = workflow, repeated, owner
        self.names: frozenset[str] = frozenset()

    def read(self, value: Any, path: str) -> Any:
        if isinstance(value, Reference):
            return {"$ref": self.text_of(value, path)}
        if isinstance(value, Default):
            text = self.text_of(value.reference, path)
            return {"$ref": text, "default": _plain(value.value, path)}
        if isinstance(value, Literal):
            return {"$literal": _plain(value.value, path)}
        if isinstance(value, Mapping):
            for name in value:
                if not isinstance(name, str):
                    refuse(f"{path}: a field's name is a text, not {name!r}")
                if name.startswith("$") and name not in _DATA_KEYS:
                    refuse(
                        f"{path}: {name} is reserved: a reference is an object such as node.field, and "
                        "literal(…) holds data with such a key"
                    )
            return {name: self.read(part, f"{path}/{name}") for name, part in value.items()}
        if isinstance(value, list | tuple):
            return [self.read(part, f"{path}/{index}") for index, part in enumerate(value)]
        return _plain(value, path)

    def text_of(self, reference: Any, path: str) -> str:
        """Return a reference's text, after a check of where it may be used."""
        if not isinstance(reference, Reference):
            refuse(f"{path} is a condition such as best != None, not {type(reference).__name__}")
        if not reference._names:
            refuse(f"{path}: `each` belongs into a filter: node[each.score > 0.5]")
        for source in reference._sources:
            if isinstance(source, Workflow) and source is not self.workflow:
                refuse(f"{path}: {reference._text} is of another workflow, {source.name}")
            if isinstance(source, Map) and source is not self.repeated:
                refuse(f"{path}: {reference._text} of a map belongs into the node that the map repeats")
        self.names |= reference._names
        return reference._text


def _plain(value: Any, path: str) -> Any:
    """Return a JSON value without references."""
    if isinstance(value, Mapping):
        return {str(name): _plain(part, f"{path}/{name}") for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part, f"{path}/{index}") for index, part in enumerate(value)]
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            refuse(f"{path}: a number must be finite")
        return value
    if isinstance(value, Reference | Default):
        refuse(f"{path}: a reference can't be used here")
    refuse(f"{path}: {type(value).__name__} is not JSON")


def _given(part: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in part.items() if value is not None}


def _payload(name: str, whole: Any, fields: Mapping[str, Any]) -> Any:
    if whole is not None and fields:
        refuse(f"give either {name} or its fields as keyword arguments")
    return whole if not fields else dict(fields)


def _parted(given: Mapping[str, Any], known: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return options, and the other keyword arguments."""
    names = known.__annotations__.keys()
    options = {name: value for name, value in given.items() if name in names}
    return options, {name: value for name, value in given.items() if name not in names}


def _schema_of(inputs: Any) -> tuple[Any, frozenset[str] | None]:
    """Return the JSON Schema of inputs, and their names if no others are allowed."""
    if (
        not isinstance(inputs, Mapping)
        or not inputs
        or not all(isinstance(one, type) for one in inputs.values())
    ):
        fields = None
        if isinstance(inputs, Mapping) and inputs.get("additionalProperties") is False:
            fields = frozenset(inputs.get("properties") or ())
        return (None if inputs is None else inputs if isinstance(inputs, bool) else dict(inputs)), fields
    for name, kind in inputs.items():
        if kind not in _TYPES:
            refuse(f"the input {name} is of a type that JSON has: str, int, float, bool, list or dict")
    schema = {
        "type": "object",
        "properties": {name: {"type": _TYPES[kind]} for name, kind in inputs.items()},
        "required": list(inputs),
        "additionalProperties": False,
    }
    return schema, frozenset(inputs)
