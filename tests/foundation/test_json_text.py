from __future__ import annotations

import json

import pytest

from foundation.json_text import JsonText, canonical_json, canonical_pieces, dumps, plain


def test_a_text_stands_where_its_value_would() -> None:
    first, second = {"b": [1, "é"], "a": None}, "\ud800"
    value = {"z": [JsonText.of(first), 1], "a": JsonText.of(second), "at": 1.5}
    assert json.loads(dumps(value)) == {"z": [first, 1], "a": second, "at": 1.5}
    assert dumps(value, sort_keys=True).startswith('{"a":"\\ud800","at":1.5,"z":[')


def test_without_one_it_is_ordinary_json() -> None:
    assert dumps({"b": 1, "a": {1, 2}}, default=sorted, sort_keys=True) == '{"a":[1,2],"b":1}'
    with pytest.raises(TypeError, match="set is no JSON"):
        dumps({1})


def test_the_value_comes_back() -> None:
    assert plain(JsonText.of({"a": [1.5]})) == {"a": [1.5]}
    assert plain([1]) == [1]


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
    ],
)
def test_the_pieces_of_a_canonical_text_are_that_text(value: object) -> None:
    assert "".join(canonical_pieces(value)) == canonical_json(value)


def test_each_job_of_a_batch_is_a_piece_of_its_own() -> None:
    """What writes the text is not left before a piece is whole."""
    longest = max(map(len, canonical_pieces({"jobs": [{"payload": "x" * 100}] * 50})))
    assert longest < 130
