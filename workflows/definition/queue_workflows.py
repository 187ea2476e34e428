"""Converts definitions of queue_workflows, a workflow engine on Postgres, into ours.

docs/explanation/from_queue_workflows.md maps its features. What has no counterpart, or another meaning,
becomes a note."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from workflows.domain.plan import RESERVED_NAMES

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_CALL = re.compile(r"pipeline\._(implicit|siblings)\((.+)\)\Z")
_PLAIN_REGEX = re.compile(r"(\^?)([\w /:-]*)(\$?)\Z")
_WORKFLOW_FIELDS = frozenset({"name", "display_name", "mode", "steps"})
_STEP_FIELDS = frozenset({"id", "kind", "pipeline", "inputs", "depends_on", "skip_if"})
_INPUT_STEP_FIELDS = frozenset(
    {"id", "kind", "widget", "target", "depends_on", "skip_if", "prompt", "source", "options"}
)
_PIPELINE_FIELDS = frozenset({"name", "display_name", "requires_gpu", "inputs", "outputs", "nodes"})
_NODE_FIELDS = frozenset({"id", "node", "depends_on", "inputs", "outputs", "gpu", "model", "skip_if"})
_ARTIFACT_FORM = {
    "type": "object",
    "required": ["$artifact"],
    "properties": {"$artifact": {"type": "string"}},
    "additionalProperties": False,
}


class NotConvertible(ValueError):
    """The JSON is no definition of queue_workflows; the message says why."""


@dataclass(frozen=True, slots=True)
class Note:
    """What has no counterpart, or another meaning. place: the step or node, such as ``detect/sv_fetch``;
    empty for the whole."""

    place: str
    text: str


@dataclass(frozen=True, slots=True)
class Converted:
    definition: dict[str, Any]
    notes: tuple[Note, ...]


def convert(document: Mapping[str, Any], pipelines: Mapping[str, Mapping[str, Any]]) -> Converted:
    """Return our definition of a workflow of queue_workflows, or of one of its pipelines.

    pipelines: the schemas of its pipelines, by name. Raises NotConvertible.
    """
    converter = _Converter(pipelines)
    if "steps" not in document and "nodes" in document:
        return converter.pipeline(document)
    return converter.workflow(document)


def pipeline_names(document: Mapping[str, Any]) -> list[str]:
    """Return the names of the pipelines that a workflow runs. Raises NotConvertible."""
    steps = _list_of(document, "steps", "")
    return [step["pipeline"] for step in steps if step.get("kind") == "pipeline" and "pipeline" in step]


@dataclass
class _Step:
    """A step. key: of the node whose output is the step's. target: field under which an answer was kept."""

    key: str
    leaves: list[str] = field(default_factory=list)
    target: str | None = None


class _Converter:
    def __init__(self, pipelines: Mapping[str, Mapping[str, Any]]) -> None:
        self._pipelines = pipelines
        self._notes: list[Note] = []
        self._nodes: dict[str, dict[str, Any]] = {}
        self._keys: dict[str, str] = {}
        self._steps: dict[str, _Step] = {}
        self._inputs: dict[str, bool] = {}

    # -- documents -----------------------------------------------------------------------------------------

    def pipeline(self, pipeline: Mapping[str, Any]) -> Converted:
        """Convert a pipeline alone: its inputs are those of a run."""
        schema = pipeline.get("inputs")
        properties = schema.get("properties") if isinstance(schema, dict) else None
        names = list(properties) if isinstance(properties, dict) else []
        step = {
            "id": "",
            "kind": "pipeline",
            "pipeline": "",
            "inputs": {name: {"$from": name} for name in names},
        }
        self._pipelines = {"": pipeline}
        return self.workflow(
            {"name": pipeline.get("name"), "display_name": pipeline.get("display_name"), "steps": [step]}
        )

    def workflow(self, document: Mapping[str, Any]) -> Converted:
        steps = _list_of(document, "steps", "")
        self._note_others(document, _WORKFLOW_FIELDS, "", "field")
        if document.get("mode", "node") != "node":
            self._note(
                "", f"the mode {document['mode']} has no counterpart: nodes are converted as in mode node"
            )
        for step in steps:
            self._name_step(step)
        for step in steps:
            if step.get("kind") == "input":
                self._nodes[self._keys[step["id"]]] = self._human(step)
            elif step.get("kind") == "pipeline":
                self._pipeline_step(step)
        if not self._nodes:
            raise NotConvertible("it has neither pipeline nor input steps")
        definition: dict[str, Any] = {}
        if isinstance(document.get("name"), str):
            definition["name"] = document["name"]
        if document.get("display_name"):
            definition["description"] = str(document["display_name"])[:1000]
        required = [name for name, has_default in self._inputs.items() if not has_default]
        definition["inputs"] = {"type": "object"} | ({"required": required} if required else {})
        definition["nodes"] = self._nodes
        definition["output"] = {
            _key_text(step_id) or step.key: {"$ref": step.key, "default": None}
            for step_id, step in self._steps.items()
        }
        definition["on_failure"] = {"running": "cancel"}
        return Converted(definition, tuple(self._notes))

    def _name_step(self, step: Mapping[str, Any]) -> None:
        """Give the nodes of a step their keys."""
        step_id, kind = step.get("id"), step.get("kind")
        if not isinstance(step_id, str) or step_id in self._steps:
            raise NotConvertible("each step has an id of its own")
        if kind == "input":
            key = self._new_key(step_id, step_id)
            self._steps[step_id] = _Step(key, [key], step.get("target"))
        elif kind == "pipeline":
            nodes = self._nodes_of(step)
            if not nodes:
                raise NotConvertible(f"the pipeline {step.get('pipeline')} has no nodes")
            needed = {need for node in nodes for need in node.get("depends_on") or ()}
            for node in nodes:
                self._new_key(f"{step_id}/{node['id']}", f"{step_id}_{node['id']}" if step_id else node["id"])
            leaves = [self._keys[f"{step_id}/{node['id']}"] for node in nodes if node["id"] not in needed]
            leaves = leaves or [self._keys[f"{step_id}/{nodes[-1]['id']}"]]
            self._steps[step_id] = _Step(leaves[-1], leaves)
            if len(leaves) > 1:
                self._note(step_id, f"ends in {len(leaves)} nodes: its output is that of {leaves[-1]}")
        else:
            self._note(step_id, f"a step of the kind {kind} has no counterpart: it is left out")

    def _nodes_of(self, step: Mapping[str, Any]) -> list[dict[str, Any]]:
        name = step.get("pipeline")
        pipeline = self._pipelines.get(name) if isinstance(name, str) else None
        if pipeline is None:
            raise NotConvertible(f"the schema of the pipeline {name} is missing")
        nodes = _list_of(pipeline, "nodes", f"the pipeline {name}")
        if not all(isinstance(node.get("id"), str) for node in nodes):
            raise NotConvertible(f"each node of the pipeline {name} has an id")
        return nodes

    # -- nodes ---------------------------------------------------------------------------------------------

    def _pipeline_step(self, step: Mapping[str, Any]) -> None:
        step_id = step["id"]
        self._note_others(step, _STEP_FIELDS, step_id, "field")
        pipeline = self._pipelines[step["pipeline"]]
        self._note_others(pipeline, _PIPELINE_FIELDS, step_id, "field of the pipeline")
        for node in self._nodes_of(step):
            place = f"{step_id}/{node['id']}" if step_id else node["id"]
            self._nodes[self._keys[f"{step_id}/{node['id']}"]] = self._model(step, pipeline, node, place)

    def _model(
        self, step: Mapping[str, Any], pipeline: Mapping[str, Any], node: Mapping[str, Any], place: str
    ) -> dict[str, Any]:
        self._note_others(node, _NODE_FIELDS, place, "field")
        model = str(node.get("node") or node["id"])
        if not node.get("gpu"):
            self._note(place, f"ran on the queue cpu: serve the model {model} with a worker --gpu none")
        if node.get("model"):
            self._note(
                place,
                f"kept the model {node['model']} warm: the code of {model} loads it, and its worker keeps it "
                "loaded",
            )
        payload = {}
        for given in node.get("inputs") or ():
            if isinstance(given, dict) and given.get("name"):
                found = self._input(str(given.get("from") or ""), step, pipeline, place)
                if found is not _ABSENT:
                    payload[str(given["name"])] = found
        siblings = [self._sibling(step, need, place) for need in node.get("depends_on") or ()]
        needs = [key for key in siblings if key] if siblings else self._step_needs(step)
        return {
            "model": model,
            "payload": payload,
            **self._order(needs, node.get("skip_if") or step.get("skip_if"), place),
        }

    def _input(self, source: str, step: Mapping[str, Any], pipeline: Mapping[str, Any], place: str) -> Any:
        """Return the template of a node's input from its `from`."""
        if call := _CALL.match(source):
            kind, text = call.groups()
            try:
                value = ast.literal_eval(text.strip())
            except (ValueError, SyntaxError, MemoryError, RecursionError):
                value = text.strip()
            if kind == "implicit":
                return self._literal(value)
            ids = value if isinstance(value, list | tuple) else []
            self._note(place, "got folders of sibling nodes: now their outputs")
            keys = [self._sibling(step, one, place) for one in ids]
            return [{"$ref": key, "default": None} for key in keys if key]
        if source.startswith("pipeline."):
            name = source.removeprefix("pipeline.")
            given = step.get("inputs") or {}
            default = _default_of(pipeline, name)
            if name not in given:
                if default is _ABSENT:
                    self._note(place, f"the step does not give {name}, which was None: left out")
                return self._literal(default)
            found = self._value(given[name], place)
            if default is not _ABSENT and isinstance(found, dict) and "$ref" in found:
                found = {"default": default, **found}
                root = str(given[name].get("$from", "")).partition(".")[0]
                if root in self._inputs:
                    self._inputs[root] = True
            return found
        sibling, _, rest = source.partition(".")
        key = self._sibling(step, sibling, place)
        if key is None:
            return _ABSENT
        self._note(place, f"got a path below the folder of {sibling}: now its output")
        return {"$ref": f"{key}{_fields([rest] if rest else [])}"}

    def _human(self, step: Mapping[str, Any]) -> dict[str, Any]:
        place, widget = step["id"], step.get("widget")
        human: dict[str, Any] = {"title": str(step.get("prompt") or place)[:1000]}
        known = _INPUT_STEP_FIELDS
        if widget == "choose_one":
            source = step.get("source")
            human["choose_from"] = self._value(source, place) if source is not None else []
            if step.get("multiple"):
                self._note(place, "let a person choose several: now one")
            known |= {"multiple"}
        elif widget == "turnout":
            options = [one for one in step.get("options") or () if isinstance(one, dict)]
            human["choose_from"] = [str(one["value"]) for one in options if one.get("value") is not None]
            if any(one.get("label") not in (None, one.get("value")) for one in options):
                self._note(place, "the options had labels: their values are shown")
        elif widget == "confirm":
            human["form"] = {"const": True}
        else:
            human["form"] = _ARTIFACT_FORM
            if widget not in ("file_upload", "pick_or_upload"):
                self._note(place, f"there is no widget {widget}: a person answers with an artifact")
            elif widget == "pick_or_upload":
                self._note(place, "there is no library to pick from: a person uploads an artifact")
            known |= {"accept", "library"}
        self._note_others(step, known, place, "field")
        return {"human": human, **self._order(self._step_needs(step), step.get("skip_if"), place)}

    def _order(self, needs: Sequence[str], skip_if: Any, place: str) -> dict[str, Any]:
        """Return `needs`, the rule, and `when`: a node ran once all that it needed completed or were skipped,
        also if all were skipped."""
        found: dict[str, Any] = {}
        if needs:
            found["needs"] = list(dict.fromkeys(needs))
        found["needs_rule"] = "none_failed"
        if skip_if and (when := self._when(skip_if, place)) is not None:
            found["when"] = when
        return found

    def _step_needs(self, step: Mapping[str, Any]) -> list[str]:
        needs: list[str] = []
        for need in step.get("depends_on") or ():
            if need in self._steps:
                needs += self._steps[need].leaves
            elif need in self._keys:
                needs.append(self._keys[need])
            else:
                raise NotConvertible(f"the step {step['id']} depends on {need}, which does not exist")
        return needs

    def _sibling(self, step: Mapping[str, Any], name: Any, place: str) -> str | None:
        key = self._keys.get(f"{step['id']}/{name}")
        if key is None:
            self._note(place, f"there is no node {name} in its pipeline: left out")
        return key

    # -- values --------------------------------------------------------------------------------------------

    def _value(self, value: Any, place: str) -> Any:
        """Return the template of a value with `$value`, `$from`, `$filter`, `$eq`, `$ne`, `$coalesce`."""
        if not isinstance(value, dict):
            if isinstance(value, list) and "$from" in json.dumps(value):
                self._note(place, "references in a list were not resolved, and are not now")
            return self._literal(value)
        if "$value" in value:
            return self._literal(value["$value"])
        if "$coalesce" in value or "$from" in value:
            text = self._expression(value, place)
            if text is None:
                return self._literal(None)
            return {"$ref": text} | ({"default": value["$default"]} if "$default" in value else {})
        return {str(name): self._value(part, place) for name, part in value.items()}

    def _expression(self, value: Any, place: str) -> str | None:
        """Return the expression of a reference; None, with a note, if it has none."""
        if not isinstance(value, dict):
            return _literal_text(value)
        if "$value" in value:
            return _literal_text(value["$value"])
        if "$coalesce" in value:
            parts = [self._expression(part, place) for part in value["$coalesce"]]
            return f"not_null({', '.join(part for part in parts if part is not None)})"
        if not isinstance(value.get("$from"), str):
            self._note(place, f"{json.dumps(value)[:80]} has no counterpart")
            return None
        text = self._path(value["$from"], place)
        if "$filter" in value:
            return f"{text}[?{' && '.join(self._filter(value['$filter'], place)) or '`true`'}]"
        for operator, sign in (("$eq", "=="), ("$ne", "!=")):
            if operator in value:
                literal = _literal_text(value[operator])
                if literal is None:
                    self._note(place, f"{operator} with a list or an object has no counterpart")
                    return None
                return f"{text} {sign} {literal}"
        return text

    def _filter(self, spec: Any, place: str) -> Iterator[str]:
        for name, expected in spec.items() if isinstance(spec, dict) else ():
            part, _, operator = name.partition(":")
            text = part if _IDENTIFIER.match(part) else json.dumps(part)
            literal = _literal_text(expected)
            if operator == "eq" and literal is not None:
                yield f"{text} == {literal}"
            elif operator == "matches" and (found := _PLAIN_REGEX.match(str(expected))):
                start, words, end = found.groups()
                literal = _literal_text(words)
                if start and end:
                    yield f"{text} == {literal}"
                else:
                    function = "starts_with" if start else "ends_with" if end else "contains"
                    yield f"{text} && {function}({text}, {literal})"
            else:
                self._note(
                    place, f"the filter {name} {json.dumps(expected)[:60]} has no counterpart: left out"
                )

    def _when(self, skip_if: Any, place: str) -> str | None:
        """Return the condition under which a node runs. A skip_if that could not be resolved did not skip."""
        if not isinstance(skip_if, dict) or not {"$from", "$coalesce"} & skip_if.keys():
            self._note(place, f"skip_if {json.dumps(skip_if)[:80]} has no counterpart: the node always runs")
            return None
        text = self._expression(skip_if, place)
        if text is None:
            return None
        if "$eq" in skip_if:
            return text.replace(" == ", " != ", 1)
        if "$ne" in skip_if:
            path = self._path(skip_if["$from"], place)
            return f"{text.replace(' != ', ' == ', 1)} || {path} == `null`"
        return f"!({text})"

    def _path(self, text: str, place: str) -> str:
        """Return the reference of a dotted path into the run's context."""
        for node_id, key in self._keys.items():
            if node_id not in self._steps and (text == node_id or text.startswith(f"{node_id}.")):
                return f"{key}{_fields(text[len(node_id) + 1 :].split('.') if text != node_id else [])}"
        root, *rest = text.split(".")
        step = self._steps.get(root) if root else None
        if step is None:
            self._inputs.setdefault(root, False)
            return f"inputs{_fields([root, *rest])}"
        if step.target is not None and rest:
            if rest[0] == step.target:
                return f"{step.key}{_fields(rest[1:])}"  # the answer is the output itself
            self._note(place, f"{text} is not the target of {root}: now a field of the answer")
        if rest and rest[0] == "files":
            self._note(place, f"{text} listed the files in the run's folder: {step.key} has to return them")
        return f"{step.key}{_fields(rest)}"

    def _literal(self, value: Any) -> Any:
        if value is _ABSENT:
            return _ABSENT
        return {"$literal": value} if '"$' in json.dumps(value, default=str) else value

    # -- keys and notes ------------------------------------------------------------------------------------

    def _new_key(self, theirs: str, name: str) -> str:
        base = _key_text(name)
        base = f"{base or 'node'}_" if base in RESERVED_NAMES or not base else base
        number, key = 1, base[:64]
        while key in self._keys.values():
            number += 1
            key = f"{base[:60]}_{number}"
        self._keys[theirs] = key
        return key

    def _note(self, place: str, text: str) -> None:
        note = Note(place, text)
        if note not in self._notes:
            self._notes.append(note)

    def _note_others(self, given: Mapping[str, Any], known: frozenset[str], place: str, kind: str) -> None:
        for name in sorted(given.keys() - known):
            self._note(place, f"the {kind} {name} has no counterpart")


_ABSENT: Any = object()


def _key_text(name: str) -> str:
    text = re.sub(r"[^a-z0-9_]+", "_", name.lower()).strip("_")
    return f"_{text}" if text[:1].isdigit() else text


def _fields(names: Sequence[str]) -> str:
    return "".join("." + (name if _IDENTIFIER.match(name) else json.dumps(name)) for name in names)


def _literal_text(value: Any) -> str | None:
    """Return a literal of an expression; None for lists and objects."""
    if isinstance(value, list | dict):
        return None
    return "`" + json.dumps(value).replace("`", "\\u0060") + "`"


def _default_of(pipeline: Mapping[str, Any], name: str) -> Any:
    try:
        return pipeline["inputs"]["properties"][name].get("default", _ABSENT)
    except (KeyError, TypeError, AttributeError):
        return _ABSENT


def _list_of(document: Mapping[str, Any], name: str, owner: str) -> list[dict[str, Any]]:
    found = document.get(name)
    if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
        raise NotConvertible(f"{owner or 'it'} has no list of {name}: it is no definition of queue_workflows")
    return found
