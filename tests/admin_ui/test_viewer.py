"""JSON on pages: escaped, and bounded however large the value is."""

from __future__ import annotations

import html
import json
import re
from typing import Any

import pytest

from admin_ui.parts.viewer import MAX_ITEMS, show_json


def text_of(value: Any) -> str:
    return html.unescape(re.sub("<[^>]*>", "", show_json(value).html))


@pytest.mark.parametrize(
    "value", [{"a": [1, -2.5e3, None, True]}, [], {}, "x", 'say "hi" \\ there', {"<b>": "</pre><script>"}, 0]
)
def test_a_small_value_is_complete(value: Any) -> None:
    assert json.loads(text_of(value)) == value
    assert not show_json(value).is_cut


def test_long_keys_are_shortened_and_stay_distinct() -> None:
    value = {"k" * 100_000: 1, "k" * 99_999 + "x": 2, "b": 3}
    shown = show_json(value)
    assert shown.is_cut
    assert len(shown.html) < 1_000
    assert list(json.loads(text_of(value)).values()) == [1, 2, 3]


def test_clients_texts_are_escaped() -> None:
    shown = show_json({"<img src=x>": "</pre><script>alert(1)</script>"}).html
    assert "<script" not in shown
    assert "<img" not in shown


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("x" * 5_000_000, "4,999,952 more characters"),
        (list(range(1_000_000)), "999,800 more"),
        ({str(number): number for number in range(1000)}, "800 more"),
        ([[[0] * 100] * 100] * 100, "more"),
    ],
)
def test_a_large_value_is_shortened_with_a_note(value: Any, says: str) -> None:
    shown = show_json(value)
    assert shown.is_cut
    assert says in shown.html
    assert len(shown.html) < 200_000


def test_a_lone_surrogate_can_be_encoded() -> None:
    show_json({"text": "\ud800", "\udfff": 1}).html.encode()
    assert MAX_ITEMS > 50
