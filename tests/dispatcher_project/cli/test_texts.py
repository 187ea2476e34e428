from __future__ import annotations

import pytest

from dispatcher_project.cli.screen import age, harmless, plain


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, "–"), (-3, "0.0 s"), (0.44, "0.4 s"), (9.96, "10 s"), (59.6, "1 min"), (185, "3 min 5 s"),
     (3600, "1 h"), (7800, "2 h 10 min"), (273_700, "3 d 4 h")],
)  # fmt: skip
def test_an_age_is_short(seconds: float | None, text: str) -> None:
    assert age(seconds) == text


def test_a_plain_text_is_one_line_without_control_characters() -> None:
    assert plain("bad\x1b[2J\x07\x9b31m\nnext\tone\u202e") == "bad·[2J··31m next one·"
    assert plain("a long message", 8) == "a long …"


@pytest.mark.parametrize(
    "bad",
    ["\x1b[2J", "\x1b]0;title\x07", "\x9b31m", "\x1b[31m", "\r", "\u202e", "\u2066", "\x7f", "\x00"],
)
def test_a_harmless_text_keeps_its_lines_and_loses_control_characters(bad: str) -> None:
    text = harmless(f"first\t{bad}\nsecond")
    assert not set(bad[0]) & set(text)
    assert text.startswith("first\t·")
    assert text.endswith("\nsecond")
