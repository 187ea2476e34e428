"""Pieces of output are joined."""

from __future__ import annotations

from typing import Any

import pytest

from jobs.domain.partial_output import join_pieces


@pytest.mark.parametrize(
    ("pieces", "joined"),
    [
        ([], []),
        (["So", " it", " is"], ["So it is"]),
        ([{"reasoning": "hm"}, {"reasoning": ", yes"}, "So"], [{"reasoning": "hm, yes"}, "So"]),
        ([{"a": "1"}, {"b": "2"}], [{"a": "1"}, {"b": "2"}]),
        ([{"text": "1"}, "2"], [{"text": "1"}, "2"]),
        ([{"a": 1}, {"a": 1}], [{"a": 1}, {"a": 1}]),
        ([{"a": "1", "b": "2"}, {"a": "1", "b": "2"}], [{"a": "1", "b": "2"}] * 2),
        ([None, None, [1], 2, True], [None, None, [1], 2, True]),
    ],
)
def test_consecutive_texts_are_joined_and_other_values_are_not(pieces: list[Any], joined: list[Any]) -> None:
    assert join_pieces(pieces) == joined
