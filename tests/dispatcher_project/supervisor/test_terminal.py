from __future__ import annotations

import io

import pytest

from dispatcher_project.supervisor.output import Terminal


@pytest.mark.parametrize(
    "line",
    [
        "2026-01-01T00:00:00Z [warning  ] sweep_failed  [jobs.tasks]",
        "ERROR:    Exception in ASGI application",
        "Traceback (most recent call last):",
    ],
)
def test_warnings_and_errors_are_shown(line: str) -> None:
    out = io.StringIO()
    Terminal(out=out).child_line("web", line)
    assert line in out.getvalue()


@pytest.mark.parametrize(
    "line", ["[info     ] attempt_finished error_code=None", "12:M # WARNING overcommit", "no error at all"]
)
def test_everything_else_only_if_verbose(line: str) -> None:
    quiet, verbose = io.StringIO(), io.StringIO()
    Terminal(out=quiet).child_line("web", line)
    Terminal(out=verbose, verbose=True).child_line("web", line)
    assert quiet.getvalue() == ""
    assert line in verbose.getvalue()


def test_lines_are_short_and_free_of_colour_codes() -> None:
    out = io.StringIO()
    Terminal(out=out).child_line("web", "\x1b[31m[error    ]\x1b[0m " + "x" * 5000)
    assert "\x1b" not in out.getvalue()
    assert len(out.getvalue()) <= 202


def test_control_characters_of_a_child_are_removed() -> None:
    out = io.StringIO()
    Terminal(out=out, verbose=True).child_line("gpu", "a model says \x1b[2J\x1b]0;title\x07\x9b2J\u202e")
    assert out.getvalue().endswith("│ a model says ·[2J·]0;title··2J·\n")


def test_a_closed_terminal_raises_no_error() -> None:
    Terminal(out=_Gone()).say("web", "ready")


class _Gone(io.StringIO):
    def write(self, _: str) -> int:
        raise BrokenPipeError


def test_every_name_has_its_colour_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    out = _Tty()
    terminal = Terminal(out=out)
    terminal.say("web", "ready")
    terminal.say("beat", "ready")
    web, beat = out.getvalue().splitlines()
    assert web.startswith("\x1b[36mweb")
    assert beat.startswith("\x1b[33mbeat")


class _Tty(io.StringIO):
    def isatty(self) -> bool:
        return True
