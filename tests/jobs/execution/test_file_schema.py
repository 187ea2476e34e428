"""What a result's schema says of the text of a file is not checked with a short text in its place."""

from __future__ import annotations

from typing import Any

import pytest

from foundation.foreign_schema import compiled, first_mismatch, make_validator
from jobs.execution.file_schema import schema_of_shown

LONG = {"type": "string", "minLength": 1000, "pattern": "^iVBOR"}


def mismatch(schema: dict[str, Any], value: Any, *files: tuple[Any, ...]) -> str | None:
    text = schema_of_shown(compiled(schema), files).text
    found = first_mismatch(make_validator(text), value)
    return None if found is None else f"{list(found.path)}"


@pytest.mark.parametrize(
    "place",
    [
        LONG,
        {"$ref": "#/$defs/long"},
        {"allOf": [{"$ref": "#/$defs/long"}, {"maxLength": 2000}]},
        {"anyOf": [{"type": "null"}, LONG]},
        {"oneOf": [LONG, {**LONG, "pattern": "^_9j_"}]},
        {"type": "string", "not": {"maxLength": 10}},
        {"enum": ["a long text", "another"]},
        {"if": {"maxLength": 10}, "then": False},
    ],
)
def test_rules_for_the_text_of_a_file_are_left_out_wherever_they_stand(place: dict[str, Any]) -> None:
    schema = {
        "$defs": {"long": LONG},
        "properties": {
            "file": place,
            "list": {"items": place, "prefixItems": [place]},
            "other": {"$ref": "#/$defs/long"},
        },
        "patternProperties": {"^f": place},
        "additionalProperties": place,
    }
    value = {"file": "QUFB", "list": ["QUFB", "QUFB"], "further": "QUFB"}
    files = [("file",), ("list", 0), ("list", 1), ("further",)]
    assert mismatch(schema, value, *files) is None
    assert mismatch(schema, value, *files[1:]) == "['file']"
    assert mismatch(schema, {**value, "other": "short"}, *files) == "['other']", "it is no file"


def test_other_rules_stay() -> None:
    schema = {"properties": {"file": {**LONG, "contentMediaType": "image/png"}}, "required": ["seed"]}
    assert mismatch(schema, {"file": "QUFB"}, ("file",)) == "[]"
    assert mismatch(schema, {"file": 7, "seed": 1}, ("file",)) == "['file']"


def test_references_that_double_at_each_step_cost_little() -> None:
    doubled = {
        f"d{at}": {"allOf": [{"$ref": f"#/$defs/d{at + 1}"}, {"$ref": f"#/$defs/d{at + 1}"}]}
        for at in range(9)
    }
    schema = {"$defs": {**doubled, "d9": {"type": "string"}}, "properties": {"file": {"$ref": "#/$defs/d0"}}}
    before = compiled(schema)
    after = schema_of_shown(before, [("file",)])
    assert len(after.text) < 200 * len(before.text)
    assert mismatch(schema, {"file": 7}, ("file",)) == "['file']"


def test_a_schema_that_refers_to_itself_ends() -> None:
    schema = {"allOf": [{"$ref": "#/$defs/a"}], "$defs": {"a": {"$ref": "#/$defs/a", "$comment": "once"}}}
    schema |= {"properties": {"next": {"$ref": "#"}, "file": LONG}}
    assert mismatch(schema, {"next": {"next": {"file": "QUFB"}}}, ("next", "next", "file")) is None
    assert mismatch(schema, {"next": {"file": "QUFB"}}, ("next", "next", "file")) == "['next', 'file']"
