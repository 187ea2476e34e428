"""The changes of a definition are shown line by line, and no more than a page can hold."""

from __future__ import annotations

from typing import Any

import pytest

from admin_ui.pages.definition_diff import CHANGES_SHOWN, MAX_LINES, shown_changes


@pytest.mark.parametrize(
    ("before", "after", "parts"),
    [
        ({"a": 1}, {"a": 2}, ["<del>-  &quot;a&quot;: 1</del>", "<ins>+  &quot;a&quot;: 2</ins>"]),
        ({"a": "<b>"}, {}, ["&lt;b&gt;"]),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}, ["Only the order of fields."]),
        ({}, {"a": [0] * (CHANGES_SHOWN + 10)}, ["more lines"]),
        ({}, {"a": [0] * MAX_LINES}, ["too long to compare"]),
    ],
    ids=["changed", "escaped", "order", "long", "too long"],
)
def test_the_changes_of_a_definition(before: Any, after: Any, parts: list[str]) -> None:
    shown = str(shown_changes(before, after))
    assert [part for part in parts if part not in shown] == [], shown
