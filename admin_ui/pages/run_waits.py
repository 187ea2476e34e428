"""Forms that answer the human nodes of a run: choices, with pictures where values are such, or fields made
from the JSON Schema of the form. What a schema says beyond these fields is checked when the answer is
sent."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from django.utils.safestring import SafeString

from admin_ui.parts.viewer import find_media, one_line_json, show_json
from artifacts.models import Artifact
from foundation.http_api.json_body import read_json
from foundation.http_api.problems import Problem
from workflows.domain.plan import NodeKind
from workflows.models import Run, Wait

MAX_WAITS = 20
"""Forms on a page."""
MAX_CHOICES = 200
MAX_FIELDS = 50
LABEL_SHOWN = 300
_IMAGE = re.compile(r"data:image/(png|jpeg|gif|webp|avif|bmp);base64,[A-Za-z0-9+/=\s]+\Z")


@dataclass(frozen=True, slots=True)
class Choice:
    """A value to choose. place: in the list. image: address of its picture; empty: none. link: of another
    host; only a link, so that looking sends no request elsewhere."""

    place: int
    label: str
    image: str = ""
    link: str = ""


@dataclass(frozen=True, slots=True)
class Field:
    """A field of an answer. name: in the form, which no schema chooses. key: in the answer; None: the answer
    itself. kind: text, long, number, integer, boolean, choice or json. choices: JSON texts."""

    name: str
    key: str | None
    label: str
    kind: str
    help: str = ""
    required: bool = False
    choices: tuple[str, ...] = ()
    value: str = ""


@dataclass(frozen=True, slots=True)
class Question:
    """What a human node asks. node_id: of its row. is_cut: choices are missing. is_single: the only field is
    the answer itself. schema: of the form, as coloured JSON."""

    node_id: str
    key: str
    title: str
    due_at: datetime | None
    choices: list[Choice] = field(default_factory=list)
    fields: list[Field] = field(default_factory=list)
    is_cut: bool = False
    is_single: bool = False
    schema: SafeString | str = ""


def questions_of(run: Run, *, host: str) -> list[Question]:
    """Return the open questions of a run, at most `MAX_WAITS`. host: our own; its images are shown."""
    waits = Wait.objects.select_related("node").filter(
        node__run=run, node__finished_at=None, kind=NodeKind.HUMAN.value, answered_at=None
    )
    return [question_of(wait, host=host) for wait in waits.order_by("node_id")[:MAX_WAITS]]


def question_of(wait: Wait, *, host: str) -> Question:
    """Return what a wait asks."""
    options = wait.options
    title = str(options.get("title") or "")[:LABEL_SHOWN]
    values = options.get("choose_from")
    if isinstance(values, list):
        pictures = _artifacts(values[:MAX_CHOICES])
        choices = [_choice(place, value, host, pictures) for place, value in enumerate(values[:MAX_CHOICES])]
        cut = len(values) > MAX_CHOICES
        return Question(wait.node_id, wait.node.key, title, wait.due_at, choices, is_cut=cut)
    fields, is_single = fields_of(options.get("form"))
    schema = show_json(options.get("form")).html
    return Question(
        wait.node_id, wait.node.key, title, wait.due_at, fields=fields, is_single=is_single, schema=schema
    )


def _artifacts(values: list[Any]) -> set[str]:
    """Return the ids of images among the artifacts that these values refer to."""
    ids = [ref for value in values if isinstance(ref := _ref(value), str)]
    found = Artifact.objects.filter(id__in=ids, content_type__startswith="image/") if ids else ()
    return {artifact.id for artifact in found}


def _ref(value: Any) -> Any:
    return value.get("$artifact") if isinstance(value, dict) else None


def _choice(place: int, value: Any, host: str, pictures: set[str]) -> Choice:
    label = value if isinstance(value, str) else one_line_json(value)
    short = label if len(label) <= LABEL_SHOWN else f"{label[:LABEL_SHOWN]}…"
    ref = _ref(value)
    if isinstance(ref, str) and ref in pictures:
        return Choice(place, short, image=f"/api/v1/artifacts/{ref}")
    for media in find_media(value, host=host)[:1]:
        if media.is_embedded:
            if _IMAGE.match(media.text):
                return Choice(place, f"Image {place + 1}", image=media.text)
        elif media.kind == "image":
            return Choice(place, short, image=media.text)
        elif media.kind == "link":
            return Choice(place, short, link=media.text)
    return Choice(place, short)


def fields_of(schema: Any) -> tuple[list[Field], bool]:
    """Return the fields for a schema, and True if the only one is the answer itself."""
    if isinstance(schema, Mapping):
        properties = schema.get("properties")
        if isinstance(properties, Mapping) and properties and len(properties) <= MAX_FIELDS:
            required = schema.get("required")
            needed = set(filter(_is_text, required)) if isinstance(required, list) else set()
            return [
                _field(place, str(key), one, str(key) in needed)
                for place, (key, one) in enumerate(properties.items())
            ], False
        if schema.get("type") in ("string", "number", "integer", "boolean") or "enum" in schema:
            return [_field(0, None, schema, required=True)], True
    return [Field("field-0", None, "Answer as JSON", "json", required=True)], True


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _field(place: int, key: str | None, schema: Any, required: bool) -> Field:
    rules = schema if isinstance(schema, Mapping) else {}
    title, about = rules.get("title"), rules.get("description")
    label = title if isinstance(title, str) and title else key or "Answer"
    default = rules.get("default")
    kind, choices = _kind(rules)
    value = ""
    if default is not None:
        value = default if kind in ("text", "long") and isinstance(default, str) else json.dumps(default)
    return Field(
        f"field-{place}",
        key,
        label[:LABEL_SHOWN],
        kind,
        about[:LABEL_SHOWN] if isinstance(about, str) else "",
        required and kind != "boolean",
        choices,
        value,
    )


def _kind(rules: Mapping[str, Any]) -> tuple[str, tuple[str, ...]]:
    values = rules.get("enum")
    if isinstance(values, list) and 0 < len(values) <= MAX_CHOICES:
        return "choice", tuple(json.dumps(value, ensure_ascii=False) for value in values)
    kind = rules.get("type")
    if kind == "string":
        longest = rules.get("maxLength")
        return ("long" if isinstance(longest, int) and longest > 200 else "text"), ()
    return (kind, ()) if kind in ("number", "integer", "boolean") else ("json", ())


class AnswerUnreadable(ValueError):
    """A field's text is not of its type; the message says which."""


def read_answer(wait: Wait, sent: Mapping[str, str]) -> Any:
    """Return the answer that a form sent. Raises AnswerUnreadable."""
    answer = _answer(wait, sent)
    try:
        return read_json(json.dumps(answer).encode())  # a NUL or half a surrogate pair can't be stored
    except Problem as problem:
        raise AnswerUnreadable(str(problem)) from None


def _answer(wait: Wait, sent: Mapping[str, str]) -> Any:
    values = wait.options.get("choose_from")
    if isinstance(values, list):
        place = sent.get("choice", "")
        if not (place.isascii() and place.isdigit() and len(place) < 7 and int(place) < len(values)):
            raise AnswerUnreadable("Choose one of the values.")
        return values[int(place)]
    fields, is_single = fields_of(wait.options.get("form"))
    if is_single:
        return _read(fields[0], sent.get(fields[0].name, ""))
    answer = {}
    for one in fields:
        text = sent.get(one.name, "")
        if text == "" and one.kind != "boolean" and not (one.required and one.kind in ("text", "long")):
            continue  # an empty field is a missing value; the schema says whether it may be missing
        answer[str(one.key)] = _read(one, text)
    return answer


def _read(one: Field, text: str) -> Any:
    if one.kind in ("text", "long"):
        return text.replace("\r\n", "\n")
    if one.kind == "boolean":
        return text == "on"
    try:
        return read_json(text.encode())
    except Problem:
        raise AnswerUnreadable(f"{one.label}: this is not {_ARTICLES.get(one.kind, 'JSON')}.") from None


_ARTICLES = {"number": "a number", "integer": "a whole number", "choice": "one of the choices"}
