from __future__ import annotations

import pytest

from dispatcher_project.cli.paint import Paint, age, bar, fitted, harmless, plain, table, width

COLOURED, PLAIN = Paint(coloured=True), Paint(coloured=False)


@pytest.mark.parametrize(
    ("seconds", "told"),
    [(None, "–"), (-3, "0.0 s"), (0.44, "0.4 s"), (9.96, "10 s"), (59.6, "1 min"), (185, "3 min 5 s"),
     (3600, "1 h"), (7800, "2 h 10 min"), (273_700, "3 d 4 h")],
)  # fmt: skip
def test_an_age_is_short(seconds: float | None, told: str) -> None:
    assert age(seconds) == told


def test_what_others_wrote_steers_no_terminal() -> None:
    assert plain("bad\x1b[2J\x07\x9b31m\nnext\tone\u202e") == "bad·[2J··31m next one·"
    assert plain("a long message", 8) == "a long …"


def test_a_screen_has_no_control_characters_but_its_own_colours() -> None:
    own = COLOURED("red", "red", "bold")
    assert harmless(f"{own}\tnext\n{PLAIN('x', 'dim')}") == f"{own}\tnext\nx"
    for bad in (
        "\x1b[2J",
        "\x1b]0;title\x07",
        "\x9b31m",
        "\x1b[8m",
        "\x1b[31;8m",
        "\r",
        "\u202e",
        "\x7f",
        "\x00",
    ):
        said = harmless(f"{own} {bad}name")
        assert said.startswith(own)
        assert not set(bad[0]) & set(said.removeprefix(own))


def test_columns_line_up_whatever_is_coloured() -> None:
    rows = [(COLOURED("ab", "red"), "7"), ("abcd", COLOURED("12", "green"))]
    lines = table(("name", "n"), rows, COLOURED, right=["n"])
    assert [width(line) for line in lines] == [8, 8, 8]
    assert table(("name", "n"), [("ab", "7"), ("abcd", "12")], PLAIN, right=["n"]) == [
        "name   n",
        "ab     7",
        "abcd  12",
    ]


def test_a_line_fits_the_screen_and_its_colours_end_with_it() -> None:
    line = COLOURED("0123456789", "red")
    assert fitted(line, 10) == line
    short = fitted(line, 5)
    assert (width(short), short.endswith("…\x1b[0m")) == (5, True)
    assert fitted("日本語", 4) == "日…"


def test_a_bar_stays_in_its_bounds() -> None:
    assert (bar(-1, 4), bar(0.5, 4), bar(9, 4)) == ("░░░░", "██░░", "████")


def test_colours_are_for_terminals_that_want_them(monkeypatch: pytest.MonkeyPatch) -> None:
    class Screen:
        def isatty(self) -> bool:
            return True

    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert Paint.of(Screen())("x", "bold") == "\x1b[1mx\x1b[0m"
    assert Paint.of(object())("x", "bold") == "x"
    monkeypatch.setenv("NO_COLOR", "1")
    assert Paint.of(Screen())("x", "bold") == "x"
