"""The quick yes and the validator that says what is wrong agree."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from foundation.http_api.json_body import check, compiled
from foundation.http_api.plain_check import plain
from jobs.api import schemas

SUBMIT = schemas.submit()
ITEM = schemas.batch_item()
NAMES = [*ITEM["properties"], "surprise"]

anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
likely = st.sampled_from([
    "zimg", "zimg\n", "", "queue", "reject", "a" * 64, "a" * 65, "key-1", "k" * 256, 1, 9, 10, 0, 5.0, 2.5,
    True, None, -1, 100_000, 100_001, 1e9, ["a"], ["a"] * 21, [""], [1], {}, {"a": {"b": [1]}},
])  # fmt: skip
RIGHT = {"model": "zimg", "payload": {}}
bodies = st.dictionaries(st.sampled_from(NAMES), likely | anything, max_size=2).map(lambda some: RIGHT | some)


@pytest.mark.parametrize("schema", [SUBMIT, ITEM], ids=["submit", "item"])
@given(body=bodies | anything)
@example(body={"payload": {}})
@example(body=RIGHT | {"model": "zimg\n"})
@example(body=RIGHT | {"model": "a" * 65})
@example(body=RIGHT | {"surprise": 1})
@example(body=RIGHT | {"deadline_seconds": 0})
@example(body=RIGHT | {"priority": 10})
@example(body=RIGHT | {"max_retries": True})
@example(body=RIGHT | {"max_retries": -1})
@example(body=RIGHT | {"tags": ["a", ""]})
@example(body=RIGHT | {"tags": ["a"] * 21})
@example(body=RIGHT | {"if_busy": 1})
@settings(max_examples=200, deadline=None)
def test_what_is_plainly_right_has_no_errors(schema: Any, body: Any) -> None:
    assert not (plain(schema)(body) and check(body, compiled(schema)))


@pytest.mark.parametrize("more", [
    {}, {"priority": 1}, {"priority": True}, {"callback_url": "https://a.example/"}, {"max_retries": 0},
    {"tags": ["a", "b"]}, {"metadata": {"a": 1}}, {"if_busy": "reject"}, {"if_busy": None},
    {"deadline_seconds": 1.5}, {"run_at": "2026-01-01T00:00:00Z"},
    {"callback_url": None, "priority": None, "tags": None, "metadata": None},
])  # fmt: skip
def test_what_is_usual_is_plainly_right(more: dict[str, Any]) -> None:
    assert plain(SUBMIT)({"model": "zimg", "payload": {"prompt": "a"}, **more})


@pytest.mark.parametrize("schema", [
    {"oneOf": [{"type": "string"}]},
    {"additionalProperties": {"type": "string"}},
    {"type": "string", "enum": ["a"]},
    {"type": "object", "properties": {"a": {"uniqueItems": True}}},
])  # fmt: skip
def test_a_schema_that_says_more_than_is_known_here_is_refused(schema: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="no plain check"):
        plain(schema)
