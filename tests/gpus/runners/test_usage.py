from __future__ import annotations

from typing import Any

import pytest

from gpus.runners.usage import MAX_NAMES, numeric_fields


@pytest.mark.parametrize(
    ("said", "kept"),
    [
        ({"prompt_tokens": 3, "predict_time": 0.5}, {"prompt_tokens": 3, "predict_time": 0.5}),
        ({"details": {"cached": 2, "deeper": {"x": 1}}}, {"details": {"cached": 2}}),
        ({"host": "http://10.0.0.7:5000", "flag": True, "none": None}, None),
        ({"n" * 65: 1, "x": float("inf")}, None),
        (["tokens"], None),
        ("tokens", None),
        (None, None),
    ],
)
def test_only_numbers_are_kept(said: Any, kept: Any) -> None:
    assert numeric_fields(said) == kept


def test_the_names_are_bounded() -> None:
    assert len(numeric_fields({str(number): number for number in range(1000)}) or {}) == MAX_NAMES
