"""One line per event, ids as fields, and no local variables: some are secrets."""

from __future__ import annotations

import json
import logging
import re
import subprocess
import sys
from functools import cache

import pytest

from dispatcher_project.logging import hide_tokens, logging_config, plain_line, printable
from dispatcher_project.supervisor.data_folder import ROOT

SCRIPT = """
import logging, logging.config, structlog
from dispatcher_project.logging import logging_config, plain_line
logging.config.dictConfig(logging_config(style="{style}"))
structlog.get_logger("ours").info("attempt_finished", job_id="J1", attempt="A1")
logging.getLogger("theirs").warning("%s happened", "it")
def f():
    token = "local" + "-" + "secret"
    raise ValueError("broken")
try: f()
except ValueError: structlog.get_logger("ours").exception("failed", job_id="J2")
structlog.get_logger("ours").info("request_started", request="POST /push/J1?token=abc.def&x=1")
class Request:
    def __repr__(self): return "<WSGIRequest: POST '/refused/J1?token=ghi.jkl'>"
logging.getLogger("django.request").warning("Conflict: /refused/J3", extra={{"request": Request()}})
logging.getLogger("django.request").error("Service Unavailable: /refused/J1", extra={{"request": Request()}})
"""


@cache
def logged(style: str) -> str:
    """What a process wrote that began anew."""
    script = SCRIPT.format(style=style)
    return subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, check=True, capture_output=True, text=True
    ).stderr


def test_json_has_one_object_per_event_also_of_other_libraries() -> None:
    lines = [json.loads(line) for line in logged("json").splitlines()]
    assert lines[0]["event"] == "attempt_finished"
    assert lines[0]["job_id"] == "J1"
    assert lines[0]["level"] == "info"
    assert lines[1]["event"] == "it happened"
    assert lines[1]["logger"] == "theirs"
    assert "ValueError: broken" in lines[2]["exception"]


@pytest.mark.parametrize("style", ["json", "console"])
def test_no_local_variable_is_logged(style: str) -> None:
    text = logged(style)
    assert "ValueError" in text
    assert "local-secret" not in text


def test_the_console_style_without_a_terminal_has_one_plain_line_per_event() -> None:
    lines = logged("console").splitlines()
    assert lines[0].endswith(" [info     ] attempt_finished               [ours] attempt=A1 job_id=J1")
    assert re.search(r" \[warning  \] it happened +\[theirs\]$", lines[1])
    assert re.search(r" \[error    \] failed +\[ours\] job_id=J2$", lines[2])
    assert lines[3:4] == ["Traceback (most recent call last):"]
    assert lines[-3] == "ValueError: broken"


def test_a_plain_line_keeps_its_fields_apart() -> None:
    fields = {"event": "x", "a": "two words", "b": "", "c": "k=v", "d": None, "e": [1], "f": "line\nbreak"}
    line = plain_line(None, "", fields)
    assert line.endswith("a='two words' b='' c='k=v' d=None e=[1] f='line\\nbreak'")
    assert "\n" not in line


def test_control_characters_from_outside_are_escaped() -> None:
    fields = {
        "event": "asked \x1b[2J",
        "user_agent": "\x1b]0;title\x07 \x9b31m",
        "n": 1,
        "exception": "a\n\tb\x1b",
    }
    shown = printable(None, "", dict(fields)).values()
    assert "".join(map(str, shown)).replace("\n", "").replace("\t", "").isprintable()
    line = plain_line(None, "", fields)
    assert line.replace("\n", "").replace("\t", "").isprintable()
    assert line.endswith("a\n\tb\\x1b")


def test_an_attempts_token_in_a_url_is_not_logged() -> None:
    fields = {"request": "POST /api/v1/tasks/callback/J1?token=abc.def&x=1"}
    assert hide_tokens(None, "", fields)["request"] == "POST /api/v1/tasks/callback/J1?token=…&x=1"
    for style in ("json", "console"):
        assert "POST /push/J1?token=" in (text := logged(style)).replace("\\u2026", "…")
        assert "abc.def" not in text
        assert "POST '/refused/J1?token=" in text
        assert "ghi.jkl" not in text


def test_a_long_url_is_not_logged_whole() -> None:
    fields = {"request": "GET /api/v1/queue/jobs?" + "tag=a&" * 10_000}
    said = hide_tokens(None, "", fields)["request"]
    assert said.startswith("GET /api/v1/queue/jobs?tag=a&tag=a")
    assert said.endswith("… (60023 characters)")
    assert len(said) < 1100


def test_a_refused_request_is_no_warning_of_its_own() -> None:
    assert "/refused/J3" not in logged("json")


def test_an_unknown_style_or_level_is_refused() -> None:
    with pytest.raises(ValueError, match="json or console"):
        logging_config(style="xml")
    with pytest.raises(ValueError, match="unknown log level"):
        logging_config(level="LOUD")
    assert logging.getLevelName("INFO") == logging.INFO
