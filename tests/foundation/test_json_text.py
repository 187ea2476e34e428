from __future__ import annotations

import json
from typing import Any

import pytest

from foundation.json_text import (
    JsonText,
    canonical_json,
    canonical_pieces,
    dumps,
    is_short,
    same_value,
    unwrap,
)


def test_a_json_text_is_inserted_like_its_value() -> None:
    first, second = {"b": [1, "é"], "a": None}, "\ud800"
    value = {"z": [JsonText.of(first), 1], "a": JsonText.of(second), "at": 1.5}
    assert json.loads(dumps(value)) == {"z": [first, 1], "a": second, "at": 1.5}
    assert dumps(value, sort_keys=True).startswith('{"a":"\\ud800","at":1.5,"z":[')


def test_without_one_it_is_ordinary_json() -> None:
    assert dumps({"b": 1, "a": {1, 2}}, default=sorted, sort_keys=True) == '{"a":[1,2],"b":1}'
    with pytest.raises(TypeError, match="set is not JSON"):
        dumps({1})


def test_the_value_comes_back() -> None:
    assert unwrap(JsonText.of({"a": [1.5]})) == {"a": [1.5]}
    assert unwrap([1]) == [1]


@pytest.mark.parametrize(
    "value",
    [
        {},
        {"jobs": []},
        {"jobs": [{"b": 1, "a": ["é", []]}, {}, 2], "b": {"y": 1, "x": [1, 2]}, "a": None},
        {'"': [1], "\\": 1.5},
        [1, {"b": 1, "a": 2}],
        "text",
        None,
        {"b": [[[{"y": [1] * 999, "x": "é" * 2_000}] * 9, []], {}], "a": {"d": {}, "c": ["x"] * 3_000}},
    ],
)
def test_the_pieces_of_a_canonical_text_are_that_text(value: object) -> None:
    assert "".join(canonical_pieces(value)) == canonical_json(value)


def test_each_job_of_a_batch_is_a_piece_of_its_own() -> None:
    """What writes the text is not left before a piece is whole."""
    longest = max(map(len, canonical_pieces({"jobs": [{"payload": "x" * 100}] * 50})))
    assert longest < 130


@pytest.mark.parametrize("make", [lambda inner: [inner], lambda inner: {"a": inner, "b": 1}])
def test_no_piece_is_long_however_deep_the_values_lie(make: Any) -> None:
    value: Any = [{"x": number} for number in range(20_000)]
    for _ in range(20):
        value = make(value)
    pieces = list(canonical_pieces(value))
    assert "".join(pieces) == canonical_json(value)
    assert max(map(len, pieces)) < 20_000


@pytest.mark.parametrize(
    ("value", "size"), [(1, 1), ("ab", 3), ({"a": ["b", 2]}, 7), ([[], {}], 3), ({"ab": {"c": "d"}}, 9)]
)
def test_a_value_is_short_up_to_its_values_and_characters(value: Any, size: int) -> None:
    assert is_short(value, size)
    assert not is_short(value, size - 1)


@pytest.mark.parametrize(
    ("left", "right", "equal"),
    [
        (1, 1.0, True),
        ({"a": [1, {"b": 2}]}, {"a": [1.0, {"b": 2.0}]}, True),
        (1, True, False),
        (0, False, False),
        ([1], [1, 2], False),
        ({"a": 1}, {"b": 1}, False),
        ({}, [], False),
        (None, False, False),
        ("1", 1, False),
    ],
)
def test_values_are_equal_as_json_says(left: Any, right: Any, equal: bool) -> None:
    assert same_value(left, right) is equal
