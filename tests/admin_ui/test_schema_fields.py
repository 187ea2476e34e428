"""Fields made from a JSON Schema, and the values that their forms stand for."""

from __future__ import annotations

from typing import Any

import pytest

from admin_ui.parts.schema_fields import MAX_FIELDS, Unreadable, fields_of


def kinds(schema: Any) -> list[str]:
    return [field.kind for field in fields_of(schema, "Answer").fields]


@pytest.mark.parametrize(
    ("schema", "kind"),
    [
        ({"type": "string"}, "text"),
        ({"type": "string", "maxLength": 2000}, "long"),
        ({"type": "integer"}, "integer"),
        ({"enum": [1, 2]}, "choice"),
        ({"enum": list(range(1000))}, "json"),
        ({"type": ["string", "null"]}, "json"),
        ({"type": "object", "properties": {}}, "json"),
        ({"properties": "nonsense", "required": 3}, "json"),
        ({"properties": {str(number): True for number in range(MAX_FIELDS + 1)}}, "json"),
        (True, "json"),
        (None, "json"),
    ],
)
def test_a_schema_has_fields_of_its_kind(schema: Any, kind: str) -> None:
    assert kinds(schema) == [kind]


def test_empty_fields_are_missing_values() -> None:
    schema = {"properties": {"a": {"type": "string"}, "b": {"type": "integer"}, "c": {"type": "boolean"}}}
    form = fields_of(schema, "Answer")
    assert form.read({}) == {"c": False}
    assert form.read({"field-0": "x", "field-1": "3", "field-2": "on"}) == {"a": "x", "b": 3, "c": True}


def test_an_optional_value_may_be_missing_and_a_required_one_may_not() -> None:
    assert fields_of(None, "Body", required=False).read({}) is None
    with pytest.raises(Unreadable, match="Give a value"):
        fields_of(None, "Answer").read({})


def test_each_error_is_shown_at_its_field_and_the_texts_stay() -> None:
    schema = {"properties": {"a/b": {"type": "integer"}, "c": {"type": "number"}, "d": {}}}
    form, sent = fields_of(schema, "Answer"), {"field-0": "x", "field-1": "1", "field-2": "{"}
    with pytest.raises(Unreadable) as raised:
        form.read(sent)
    again = form.sent(sent, raised.value.errors)
    assert [field.error != "" for field in again.fields] == [True, False, True]
    assert [field.value for field in again.fields] == ["x", "1", "{"]
    assert form.others({"": "a is missing", "/c/0": "inside"}) == ["a is missing"]
    assert form.sent(sent, {"/c/0": "inside"}).fields[1].error == "inside"


@pytest.mark.parametrize("text", ["a\0b", "\ud800"])
def test_a_text_that_no_row_can_hold_is_an_error(text: str) -> None:
    with pytest.raises(Unreadable):
        fields_of({"type": "string"}, "Answer").read({"field-0": text})


def test_a_default_that_is_no_ascii_is_chosen() -> None:
    (field,) = fields_of({"enum": ["größe", "farbe"], "default": "größe"}, "Answer").fields
    assert field.value in [text for text, _ in field.choices]


def test_choices_have_plain_labels_unless_two_would_look_alike() -> None:
    (plain,) = fields_of({"enum": ["oil", 3]}, "Answer").fields
    assert plain.choices == (('"oil"', "oil"), ("3", "3"))
    (mixed,) = fields_of({"enum": ["3", 3]}, "Answer").fields
    assert mixed.choices == (('"3"', '"3"'), ("3", "3"))
