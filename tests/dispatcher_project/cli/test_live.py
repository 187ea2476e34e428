"""On a real pseudo terminal: drawn in place, left by q and by Ctrl-C, and as it was before."""

from __future__ import annotations

import os
import pty
import termios
import threading
from collections.abc import Iterator

import pytest

from dispatcher_project.management.commands.top import show_live
from tests.support.terminal import Screen


@pytest.fixture
def keyboard() -> Iterator[tuple[int, int]]:
    """Our end, and the end that the program reads."""
    ours, theirs = pty.openpty()
    yield ours, theirs
    os.close(ours)
    os.close(theirs)


def test_it_redraws_in_place_until_q(keyboard: tuple[int, int]) -> None:
    ours, theirs = keyboard
    before = termios.tcgetattr(theirs)
    out, drawn = Screen(), []

    def draw(columns: int, rows: int) -> str:
        drawn.append((columns, rows))
        if len(drawn) == 1:
            assert not termios.tcgetattr(theirs)[3] & (termios.ICANON | termios.ECHO), "keys come one by one"
        os.write(ours, b"x" if len(drawn) < 3 else b"q")  # any other key draws anew at once
        return f"picture {len(drawn)}\n" * 500

    show_live(draw, every_seconds=60.0, coloured=True, out=out, keys=theirs)
    text = out.getvalue()
    assert len(drawn) == 3
    assert text.startswith("\x1b[?1049h\x1b[H\x1b[?25l")
    assert text.count("\x1b[Hpicture") == 3, "from the top left corner"
    assert text.count("picture 1") == drawn[0][1], "no more lines than the screen has"
    assert text.endswith("\x1b[?25h\x1b[?1049l"), "cursor and screen are back"
    assert termios.tcgetattr(theirs) == before


def test_ctrl_c_leaves_the_terminal_as_it_was(keyboard: tuple[int, int]) -> None:
    _, theirs = keyboard
    before, out = termios.tcgetattr(theirs), Screen()

    def draw(columns: int, rows: int) -> str:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        show_live(draw, every_seconds=60.0, coloured=True, out=out, keys=theirs)
    assert out.getvalue().endswith("\x1b[?25h\x1b[?1049l")
    assert termios.tcgetattr(theirs) == before


def test_without_a_keyboard_it_draws_by_the_clock() -> None:
    out, seen = Screen(), threading.Event()

    def draw(columns: int, rows: int) -> str:
        if seen.is_set():
            raise KeyboardInterrupt
        seen.set()
        return "one"

    with pytest.raises(KeyboardInterrupt):
        show_live(draw, every_seconds=0.01, coloured=True, out=out, keys=None)
    assert "one" in out.getvalue()
