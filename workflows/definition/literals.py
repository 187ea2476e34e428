"""Checks the literal values, those without references, of a definition that is to be stored. A value with
which a node would fail at each start is refused, with the code of that failure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from foundation.http_api.json_body import pointer_to
from foundation.http_api.problems import FieldError
from foundation.ids import is_id
from foundation.json_text import same_value
from gpus.models.model_config import MAX_SECONDS
from jobs.domain.errors import ArtifactMissing, Refused
from workflows.definition.body import Definition, NodeBody, settings_path
from workflows.definition.limits import Limits
from workflows.definition.outside import Outside
from workflows.definition.timers import end_of_timer
from workflows.domain.errors import AnswerInvalid
from workflows.domain.plan import MapSpec, NodeKind, NodeSpec, Plan
from workflows.domain.template import (
    UNKNOWN,
    Path,
    TemplateError,
    artifacts_in,
    is_known,
    literal_of,
    lost_parts,
    unresolved_parts,
)
from workflows.domain.values import (
    BadValue,
    artifact_of,
    check_choices,
    check_items,
    check_payload_kind,
    child_count,
    is_artifact,
)

MAX_VERSION = 2**31 - 1
"""Highest number of a version that the database can hold."""


def literal_errors(body: Definition, plan: Plan, limits: Limits, outside: Outside) -> Iterator[FieldError]:
    """Yield the errors of literal values. plan: that of the body, maybe of one with other errors."""
    yield from _over(limits.text_characters, ("description",), body.description)
    yield from _lost(plan.output, ("output",))
    for node in plan.all_nodes:
        found = body.nodes[node.key]
        yield from _limited(found, ("nodes", node.key), limits)
        yield from _Literals(node, limits, outside).errors()
    yield from _missing_artifacts(plan, outside)


def _missing_artifacts(plan: Plan, outside: Outside) -> Iterator[FieldError]:
    """Yield an error for each artifact that payloads and maps name, and that is not there, at its first
    place."""
    places: dict[str, Path] = {}
    for node in plan.all_nodes:
        parts: list[tuple[Any, Path]] = []
        if node.kind is NodeKind.MODEL:
            parts.append((node.settings["payload"], ("nodes", node.key, "payload")))
        if node.map is not None:
            parts.append((node.map.over, ("nodes", node.key, "map", "over")))
        for template, path in parts:
            for artifact_id, place in artifacts_in(template, path):
                if is_id(artifact_id):  # a malformed one is refused as such
                    places.setdefault(artifact_id, place)
    for artifact_id in outside.missing_artifacts(places):
        text = f"There is no artifact {artifact_id}, or it is not yours."
        yield FieldError(pointer_to(*places[artifact_id]), ArtifactMissing.code, text)


def _limited(node: NodeBody, path: Path, limits: Limits) -> Iterator[FieldError]:
    """Yield an error for each number and text of a node that exceeds its setting."""
    if node.human is not None:
        yield from _over(limits.text_characters, (*path, "human", "title"), node.human.title)
        if len(node.human.answer_by or ()) > limits.answer_keys:
            why = f"Must have at most {limits.answer_keys} items (DISPATCHER_WORKFLOW_ANSWER_KEYS)."
            yield FieldError(pointer_to(*path, "human", "answer_by"), "too_many", why)
    given: list[tuple[Path, float | None, float, str]] = [
        (("max_run_seconds",), node.max_run_seconds, MAX_SECONDS, ""),
        (("version",), node.version, MAX_VERSION, ""),
    ]
    if node.map is not None:
        setting = "DISPATCHER_WORKFLOW_MAX_PARALLEL"
        given.append((("map", "max_parallel"), node.map.max_parallel, limits.max_parallel, setting))
    if node.cache is not None:
        setting = "DISPATCHER_WORKFLOW_CACHE_SECONDS"
        given.append((("cache", "ttl_seconds"), node.cache.ttl_seconds, limits.cache_seconds, setting))
    for kind, wait in (("human", node.human), ("signal", node.signal)):
        if wait is not None:
            setting = "DISPATCHER_WORKFLOW_WAIT_SECONDS"
            given.append(((kind, "expires_seconds"), wait.expires_seconds, limits.wait_seconds, setting))
    for place, number, most, setting in given:
        if number is not None and number > most:
            named = f" ({setting})" if setting else ""
            text = f"Must be at most {most:.15g}{named}."
            yield FieldError(pointer_to(*path, *place), "out_of_range", text)


def _over(most: int, path: Path, text: str | None) -> Iterator[FieldError]:
    if text is not None and len(text) > most:
        why = f"Must have at most {most} characters (DISPATCHER_WORKFLOW_TEXT_CHARACTERS)."
        yield FieldError(pointer_to(*path), "too_long", why)


def _lost(template: Any, path: Path) -> Iterator[FieldError]:
    yield from map(_template_error, lost_parts(template, path))


class _Literals:
    """The literal values of one node."""

    def __init__(self, node: NodeSpec, limits: Limits, outside: Outside) -> None:
        self._node, self._limits, self._outside = node, limits, outside
        self._path: Path = ("nodes", node.key)
        self._inside: Path = settings_path(node.key, node.kind)

    def errors(self) -> Iterator[FieldError]:
        node = self._node
        for part, template in node.settings.items():
            yield from _lost(template, (*self._inside, part))
        if node.map is not None:
            yield from self._map(node.map)
        given = {part: literal_of(template) for part, template in node.settings.items()}
        if node.kind is NodeKind.MODEL:
            yield from self._job(given["payload"])
        elif node.kind is NodeKind.WORKFLOW:
            yield from self._sub_run(given["inputs"])
        elif node.kind is NodeKind.TIMER:
            yield from self._timer(given)
        else:
            yield from self._wait(given)

    def _map(self, spec: MapSpec) -> Iterator[FieldError]:
        path, most = (*self._path, "map"), self._limits.map_items
        yield from _lost(spec.over, (*path, "over"))
        yield from _lost(spec.count, (*path, "count"))
        over, count = literal_of(spec.over), literal_of(spec.count)
        try:
            is_file = artifact_of(over) is not None or (is_artifact(over) and not is_known(over))
            if spec.over is not None and over is not UNKNOWN and not is_file:
                check_items(over, most)
            if spec.count is not None and count is not UNKNOWN:
                child_count(count, most)
        except BadValue as error:
            yield _error((*path, "over" if spec.count is None else "count"), error)

    def _job(self, payload: Any) -> Iterator[FieldError]:
        if (self._node.options.get("max_run_seconds") or 0) > MAX_SECONDS:
            return
        if payload is not UNKNOWN:
            try:
                check_payload_kind(payload)
            except BadValue as error:
                yield _error((*self._path, "payload"), error)
                return
        whole = payload if is_known(payload) else UNKNOWN
        for refused in self._outside.refusals_of_job(self._node.options, whole):
            yield _refusal(self._path, refused)

    def _sub_run(self, inputs: Any) -> Iterator[FieldError]:
        name, version = self._node.options["workflow"], self._node.options.get("version")
        if version is not None and is_known(inputs):  # the newest may be another one when the node starts
            refused = self._outside.refusal_of_inputs(name, version, inputs)
            if refused is not None:
                yield _refusal(self._path, refused)

    def _timer(self, given: Mapping[str, Any]) -> Iterator[FieldError]:
        if len(given) != 1 or UNKNOWN in given.values():
            return
        try:
            end_of_timer(given, self._outside.now(), self._limits.wait_seconds)
        except BadValue as error:
            yield _error((*self._inside, *given), error)

    def _wait(self, given: Mapping[str, Any]) -> Iterator[FieldError]:
        choices = given.get("choose_from", UNKNOWN)
        if choices is not UNKNOWN:
            try:
                check_choices(choices, self._limits.choices)
            except BadValue as error:
                yield _error((*self._inside, "choose_from"), error)
                return
        default, path = self._node.options.get("default"), (*self._inside, "default")
        if default is None:
            return
        if unresolved := [_template_error(error) for error in unresolved_parts(default, path)]:
            yield from unresolved
        elif choices is not UNKNOWN and is_known(choices):
            if not any(same_value(default, choice) for choice in choices):
                yield _refusal(path, AnswerInvalid("The default is none of the choices."))
        else:
            schema = self._node.options.get("form", self._node.options.get("body_schema", True))
            if (refused := self._outside.refusal_of_value(schema, default)) is not None:
                yield _refusal(path, refused)


def _template_error(error: TemplateError) -> FieldError:
    return FieldError(pointer_to(*error.path), "invalid_expression", f"{error}.")


def _error(path: Path, error: BadValue) -> FieldError:
    text = str(error)
    return FieldError(pointer_to(*path), error.code, f"{text[0].upper()}{text[1:]}.")


def _refusal(path: Path, refused: Refused) -> FieldError:
    return FieldError(pointer_to(*path) + (refused.pointer or ""), refused.code, str(refused))
