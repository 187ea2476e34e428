"""Form fields made from a JSON Schema, and the JSON value that a sent form stands for. What a schema says
beyond the fields is checked by the operation that takes the value."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from foundation.http_api.json_body import read_json
from foundation.http_api.problems import Problem
from foundation.json_paths import pointer

MAX_CHOICES = 200
MAX_FIELDS = 50
LABEL_SHOWN = 300


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a form. name: in the form, which no schema chooses. key: in the value; None: the value
    itself. kind: text, long, number, integer, boolean, choice or json. choices: JSON texts with their
    labels. value, error: of a form that was sent."""

    name: str
    key: str | None
    label: str
    kind: str
    help: str = ""
    required: bool = False
    choices: tuple[tuple[str, str], ...] = ()
    value: str = ""
    error: str = ""

    @property
    def pointer(self) -> str:
        """The JSON pointer of the field in the value."""
        return "" if self.key is None else pointer([self.key])


@dataclass(frozen=True, slots=True)
class SchemaFields:
    """The fields of a schema. is_single: the only one is the value itself."""

    fields: tuple[Field, ...]
    is_single: bool

    def read(self, sent: Mapping[str, str]) -> Any:
        """Return the value of a sent form. Raises Unreadable with the errors of all fields."""
        value: dict[str, Any] = {}
        errors: dict[str, str] = {}
        for one in self.fields:
            text = sent.get(one.name, "")
            if text == "" and not (one.kind == "boolean" or (one.required and one.kind in ("text", "long"))):
                if self.is_single and one.required:
                    errors[one.pointer] = "Give a value."
                continue  # an empty field is a missing value; the schema says whether it may be missing
            try:
                value[one.name] = _read(one, text)
            except ValueError as error:
                errors[one.pointer] = str(error)
        if errors:
            raise Unreadable(errors)
        if self.is_single:
            return value.get(self.fields[0].name)
        return {str(one.key): value[one.name] for one in self.fields if one.name in value}

    def sent(self, sent: Mapping[str, str], errors: Mapping[str, str]) -> SchemaFields:
        """Return the fields with the texts of a sent form. errors: by JSON pointer into the value; an error
        inside a field is shown at the field."""
        return replace(self, fields=tuple(_sent(one, sent, errors) for one in self.fields))

    def others(self, errors: Mapping[str, str]) -> list[str]:
        """Return the errors that no field shows, with their places."""
        return [
            f"{place}: {text}" if place else text
            for place, text in errors.items()
            if not any(_is_inside(place, one) for one in self.fields)
        ]


class Unreadable(ValueError):
    """Texts of a form are not of their fields' types. errors: by JSON pointer into the value."""

    def __init__(self, errors: Mapping[str, str]) -> None:
        super().__init__(" ".join(errors.values()))
        self.errors = errors


def fields_of(schema: Any, label: str, *, required: bool = True) -> SchemaFields:
    """Return the fields for a schema. label, required: of a field that is the value itself."""
    if isinstance(schema, Mapping):
        properties = schema.get("properties")
        if isinstance(properties, Mapping) and properties and len(properties) <= MAX_FIELDS:
            names = schema.get("required")
            needed = {one for one in names if isinstance(one, str)} if isinstance(names, list) else set()
            fields = (
                _field(place, str(key), one, str(key), str(key) in needed)
                for place, (key, one) in enumerate(properties.items())
            )
            return SchemaFields(tuple(fields), is_single=False)
        if schema.get("type") in ("string", "number", "integer", "boolean") or "enum" in schema:
            return SchemaFields((_field(0, None, schema, label, required),), is_single=True)
    return SchemaFields((Field("field-0", None, f"{label} as JSON", "json", required=required),), True)


def _field(place: int, key: str | None, schema: Any, label: str, required: bool) -> Field:
    rules = schema if isinstance(schema, Mapping) else {}
    title, about, default = rules.get("title"), rules.get("description"), rules.get("default")
    kind, choices = _kind(rules)
    value = ""
    if default is not None:
        is_text = kind in ("text", "long") and isinstance(default, str)
        value = default if is_text else json.dumps(default, ensure_ascii=False)
    return Field(
        f"field-{place}",
        key,
        (title if isinstance(title, str) and title else label)[:LABEL_SHOWN],
        kind,
        about[:LABEL_SHOWN] if isinstance(about, str) else "",
        required and kind != "boolean",
        choices,
        value,
    )


def _kind(rules: Mapping[str, Any]) -> tuple[str, tuple[tuple[str, str], ...]]:
    values = rules.get("enum")
    if isinstance(values, list) and 0 < len(values) <= MAX_CHOICES:
        return "choice", _choices(values)
    kind = rules.get("type")
    if kind == "string":
        longest = rules.get("maxLength")
        return ("long" if isinstance(longest, int) and longest > 200 else "text"), ()
    return (kind, ()) if kind in ("number", "integer", "boolean") else ("json", ())


def _choices(values: list[Any]) -> tuple[tuple[str, str], ...]:
    """Return JSON texts with labels: texts without quotes, unless ``"3"`` would look like ``3``."""
    texts = [json.dumps(value, ensure_ascii=False) for value in values]
    labels = [value if isinstance(value, str) else text for value, text in zip(values, texts, strict=True)]
    is_clear = len(set(labels)) == len(labels) and "" not in labels
    shown = labels if is_clear else texts
    return tuple((text, label[:LABEL_SHOWN]) for text, label in zip(texts, shown, strict=True))


def _read(one: Field, text: str) -> Any:
    if one.kind == "boolean":
        return text == "on"
    is_text = one.kind in ("text", "long")
    raw = json.dumps(text.replace("\r\n", "\n")) if is_text else text
    try:
        return read_json(raw.encode())  # a NUL or half a surrogate pair can't be stored
    except Problem as problem:
        why = str(problem) if is_text else f"this is not {_ARTICLES.get(one.kind, 'JSON')}."
        raise ValueError(f"{one.label}: {why}") from None


_ARTICLES = {"number": "a number", "integer": "a whole number", "choice": "one of the choices"}


def _sent(one: Field, sent: Mapping[str, str], errors: Mapping[str, str]) -> Field:
    text = sent.get(one.name, "")
    if one.kind == "boolean":
        text = "true" if text == "on" else ""
    error = " ".join(error for place, error in errors.items() if _is_inside(place, one))
    return replace(one, value=text, error=error)


def _is_inside(place: str, one: Field) -> bool:
    return place == one.pointer or place.startswith(f"{one.pointer}/")
