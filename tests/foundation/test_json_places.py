"""Paths to files: the places that they match, and texts that are refused as paths."""

from __future__ import annotations

from typing import Any

import pytest

from foundation.expressions import ExpressionRefused
from foundation.json_places import places

VALUE: Any = {
    "images": ["a", "b"],
    "data": [{"b64": "c"}, {"url": "d"}, {"b64": "e"}],
    "video": {"url": "f"},
    "x y": {"k1": {"z": "g"}, "k2": {"z": "h"}},
    "none": [],
    "rows": [["i", "j"], ["k"]],
}


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("images[*]", {("images", 0): "a", ("images", 1): "b"}),
        ("images[-1]", {("images", 1): "b"}),
        ("images[2]", {}),
        ("data[*].b64", {("data", 0, "b64"): "c", ("data", 2, "b64"): "e"}),
        ("data[1].url", {("data", 1, "url"): "d"}),
        ("video.url", {("video", "url"): "f"}),
        ('"x y".*.z', {("x y", "k1", "z"): "g", ("x y", "k2", "z"): "h"}),
        ("rows[*][*]", {("rows", 0, 0): "i", ("rows", 0, 1): "j", ("rows", 1, 0): "k"}),
        ("rows[*][0]", {("rows", 0, 0): "i", ("rows", 1, 0): "k"}),
        ("@", {(): VALUE}),
        ("video[*]", {}),
        ("images.*", {}),
        ("missing.url", {}),
    ],
)
def test_a_path_leads_to_places(path: str, found: dict[Any, Any]) -> None:
    assert places(path).find(VALUE).values == found


def test_an_empty_list_is_there_and_a_missing_one_is_not() -> None:
    assert places("none[*].b64").find(VALUE).is_there
    assert places("images[*]").find(VALUE).is_there
    assert not places("missing[*]").find(VALUE).is_there
    assert not places("data[*].png").find(VALUE).is_there


@pytest.mark.parametrize(
    "text",
    [
        "images[]",
        "images[1:]",
        "images[?a]",
        "a || b",
        "a | b",
        "[a, b]",
        "{a: b}",
        "length(a)",
        "`1`",
        "a ==",
        "",
        "!a",
        "a" * 1001,
        ".".join("a" * 101),
    ],
)
def test_other_expressions_are_no_paths(text: str) -> None:
    with pytest.raises(ExpressionRefused):
        places(text)
