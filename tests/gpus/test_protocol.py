"""Values that servers and models report."""

from __future__ import annotations

import math
from typing import Any

import pytest

from gpus.protocol import MAX_PROGRESS_TEXT, Progress, parse_progress


@pytest.mark.parametrize(
    ("said", "read"),
    [
        (0.25, Progress(0.25)),
        (1, Progress(1.0)),
        (40, Progress(1.0)),
        (-0.5, Progress(0.0)),
        (math.inf, Progress(1.0)),
        (10**400, Progress(1.0)),
        ({"value": 0.5}, Progress(0.5)),
        ({"value": 0.5, "text": " step 8 of 20 ", "more": 1}, Progress(0.5, "step 8 of 20")),
        ({"value": 0.5, "text": 7}, Progress(0.5)),
        ({"value": 0.5, "text": "a\nb\0\x1b[31m\ud800"}, Progress(0.5, "a\\nb\\x00\\x1b[31m\\ud800")),
        ({"value": 0.5, "text": "x" * 1000}, Progress(0.5, "x" * MAX_PROGRESS_TEXT)),
        ({"value": 0.5, "text": "\0" * 1000}, Progress(0.5, "\\x00" * (MAX_PROGRESS_TEXT // 4))),
        ({"text": "no number"}, None),
        ({"value": "0.5"}, None),
        (math.nan, None),
        (True, None),
        ("half", None),
        (None, None),
        ([0.5], None),
    ],
)
def test_progress_is_a_number_or_an_object_with_a_text(said: Any, read: Progress | None) -> None:
    assert parse_progress(said) == read


def test_progress_without_a_text_is_sent_as_its_number() -> None:
    assert Progress(0.5).as_json() == 0.5
    assert parse_progress(Progress(0.5, "half").as_json()) == Progress(0.5, "half")
