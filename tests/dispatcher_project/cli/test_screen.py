"""Tables, lines and progress, on a terminal and in a pipe."""

from __future__ import annotations

import re
import subprocess
import sys
from io import StringIO

import pytest
from rich.cells import cell_len

from dispatcher_project.cli.screen import (
    field_text,
    indented,
    line,
    progress,
    table,
    takes_colours,
    text_of,
)
from tests.support.terminal import Screen

HOSTILE = {
    "rich markup": ("[red]x[/red]", "[red]x[/red]"),
    "a closing tag without its start": ("x[/]", "x[/]"),
    "a link": ("[link=https://evil.example]x[/link]", "[link=https://evil.example]x[/link]"),
    "an emoji code": (":skull: x", ":skull: x"),
    "a colour": ("\x1b[31mx", "·[31mx"),
    "a hyperlink of the terminal": ("\x1b]8;;https://evil.example\x07x", "·]8;;https://evil.example·x"),
    "a one-byte escape": ("\x9b2Jx", "·2Jx"),
    "the direction of writing": ("x\u202eyz\u2066", "x·yz·"),
    "a line end": ("x\ny\r\nz", "x y z"),
    "wide characters": ("模型 x", "模型 x"),
    "a combining mark": ("e\u0301x", "e\u0301x"),
}
ESCAPES = re.compile(r"\x1b\[[0-9;]*m")
OWN_ESCAPES = re.compile(r"\x1b\[(0|1|2|3[1-6]|1;3[1-6])m")


@pytest.mark.parametrize(("text", "shown"), HOSTILE.values(), ids=HOSTILE)
@pytest.mark.parametrize("is_terminal", [False, True], ids=["pipe", "terminal"])
def test_texts_of_tenants_are_shown_as_they_are(
    monkeypatch: pytest.MonkeyPatch, text: str, shown: str, is_terminal: bool
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    out = Screen() if is_terminal else StringIO()
    parts = (
        table(("name", "message"), [(text, "first"), ("m", line((text, "red")))]),
        line("failed: ", (text, "red")),
        indented(("ERROR", "red"), [line(text, wraps=True)], columns=7),
    )
    said = text_of(parts, out, coloured=is_terminal).removesuffix("\n")
    assert all(OWN_ESCAPES.fullmatch(escape) for escape in re.findall(r"\x1b[^m]*m?", said))
    bare = [re.sub(" +", " ", row) for row in ESCAPES.sub("", said).split("\n")]
    shown = re.sub(" +", " ", shown)
    assert [row.rstrip() for row in bare[1:]] == [
        f"{shown} first", f"m {shown}", f"failed: {shown}", f"ERROR {shown}",
    ]  # fmt: skip


def test_columns_line_up_under_wide_characters() -> None:
    rows = [("模型", "7"), ("abcd", "12"), ("e\u0301", "3")]
    said = text_of([table(("name", "n"), rows, right=["n"])], StringIO(), coloured=False).splitlines()
    assert said[2] == "abcd  12"
    assert {cell_len(row) for row in said} == {8}


def test_a_pipe_gets_whole_cells_on_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    monkeypatch.setenv("FORCE_COLOR", "1")
    message = "word " * 2_000
    rows = [("01K", message.strip(), "x"), ("02", "short", "")]
    parts = (table(("job", "message", ""), rows), line(message, ("end", "red")))
    first, *others = text_of(parts, StringIO(), coloured=takes_colours(StringIO())).splitlines()
    assert first.split() == ["job", "message"]
    assert [len(others), others[0].split(), others[1], others[2]] == [
        3, ["01K", *message.split(), "x"], "02   short", f"{message}end",
    ]  # fmt: skip


def test_a_narrow_terminal_cuts_the_message_and_not_the_id(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    job_id = "01M8BQ1Y0F0Y1WWB6614QYH9FV"
    parts = (
        table(("job", "state", ""), [(job_id, "failed", "a long message")]),
        line("one line; " * 9),
        line("several lines " * 5, wraps=True),
    )
    head, row, cut, *wrapped = text_of(parts, Screen(), coloured=False).splitlines()
    assert row == f"{job_id}  failed  a l…"
    assert (len(cut), cut[-1]) == (40, "…")
    assert " ".join(wrapped).split() == ["several", "lines"] * 5
    assert max(map(len, (head, *wrapped))) <= 40


@pytest.mark.parametrize(
    ("environment", "expected"),
    [({"TERM": "xterm"}, True), ({"TERM": "xterm", "NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)],
)
def test_colours_are_for_terminals_that_take_them(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], expected: bool
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    screen = Screen()
    assert takes_colours(screen) is expected
    assert not takes_colours(StringIO())
    said = text_of([line(("x", "bold red"))], screen, coloured=takes_colours(screen))
    assert said == ("\x1b[1;31mx\x1b[0m\n" if expected else "x\n")


def test_progress_is_drawn_in_place_and_taken_away() -> None:
    screen, pipe = Screen(), StringIO()
    for out in (screen, pipe):
        with progress(out, "[red]retry jobs", 4) as draw:
            draw(1)
            draw(4)
    drawn = screen.getvalue()
    assert "[red]retry jobs" in drawn
    assert drawn.index("1/4") < drawn.index("4/4")
    assert drawn.endswith("\x1b[1A\x1b[2K"), "the line is erased"
    assert pipe.getvalue() == ""


def test_a_process_imports_rich_only_to_print() -> None:
    """structlog would import it."""
    modules = "dispatcher_project.celery, dispatcher_project.web.server, dispatcher_project.cli.screen"
    names = ("circuits", "doctor", "index", "job", "jobs", "keys", "quarantine", "servers", "top", "workers")
    commands = ", ".join(names)
    code = f"""
import sys, {modules}, django
django.setup()
from dispatcher_project.management.commands import {commands}
sys.exit("rich" in sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ({"code": "run_failed", "message": "no\nmemory"}, "run_failed: no memory"),
        (["b", "c"], "b,c"),
        ({"code": 1}, "{'code': 1}"),
        (3, "3"),
    ],
)
def test_a_field_of_an_event_is_shown_in_words(value: object, shown: str) -> None:
    assert field_text(value) == shown
