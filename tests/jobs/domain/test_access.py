from __future__ import annotations

import pytest

from gpus.errors import ERRORS_BY_CODE
from jobs.domain import errors
from jobs.domain.access import MAX_TEXT, TEXTS, UNKNOWN, shown_error, shown_event, shown_evidence

SAID = "ValueError: no file /models/flux/a.bin at 10.0.0.7:5000"


def text(code: str, message: str) -> str:
    result = shown_error(code, message, in_full=False)
    assert result is not None
    assert result["code"] == code
    return result["message"]


def test_each_code_has_a_text_of_its_own() -> None:
    of_jobs = {value for name, value in vars(errors).items() if name.isupper() and isinstance(value, str)}
    assert set(TEXTS) == set(ERRORS_BY_CODE) | of_jobs
    assert len(set(TEXTS.values())) == len(TEXTS)


FAILED = (
    "ValueError: no weights in /srv/models/flux.bin of http://10.0.0.7:80/x ask box-1:8080 or 10.0.0.8\n"
    "more\n\ntrace"
)


@pytest.mark.parametrize(
    ("setting", "said", "shown"),
    [
        ("class", FAILED, "The model failed with ValueError."),
        ("class", "torch.OutOfMemoryError: x", "The model failed."),
        ("class", "/srv/Error: x", "The model failed."),
        ("class", "x" * 80 + "Error: x", "The model failed."),
        ("message", FAILED, "ValueError: no weights in … of … ask … or …"),
        ("message", r"OSError: C:\\x\\y ~/z '/a b'", "OSError: … … '… b'"),
        ("message", "E" * 600, "E" * 500),
        ("message", "", "The model failed."),
        ("code", FAILED, "The model failed."),
    ],
)
def test_a_tenant_reads_of_a_models_failure_what_the_setting_says(
    setting: str, said: str, shown: str
) -> None:
    assert shown_error("run_failed", said, in_full=False, tenant_errors=setting) == {
        "code": "run_failed",
        "message": shown,
    }
    data = {"error": {"code": "run_failed", "message": said}}
    assert shown_event(data, in_full=False, tenant_errors=setting)["error"]["message"] == shown
    assert (
        shown_error("server_error", said, in_full=False, tenant_errors=setting)["message"]
        == (TEXTS["server_error"])
    )


@pytest.mark.parametrize("code", sorted({*TEXTS, "new_code"} - {"bad_input", "output_invalid"}))
def test_a_tenant_reads_no_message_of_a_server_or_model(code: str) -> None:
    assert text(code, SAID) == TEXTS.get(code, UNKNOWN)
    assert shown_error(code, SAID, in_full=True) == {"code": code, "message": SAID}


def test_the_message_of_bad_input_is_shown_without_its_traceback() -> None:
    assert text("bad_input", "prompt is missing\n\nTraceback:\n  File x") == "prompt is missing"
    assert text("bad_input", "") == TEXTS["bad_input"]
    assert len(text("bad_input", "x" * 5000)) == MAX_TEXT


def test_the_dispatchers_own_message_about_a_result_is_shown_without_what_is_for_operators() -> None:
    said = "The result has nothing at image.\n\nThe result is an object with /models/flux."
    assert text("output_invalid", said) == "The result has nothing at image."
    assert text("output_invalid", "") == TEXTS["output_invalid"]


def test_control_characters_in_messages_are_escaped() -> None:
    assert text("bad_input", "red \x1b[31m\nünd \x9b \u202e") == r"red \x1b[31m\nünd \x9b \u202e"


def test_no_code_is_no_error() -> None:
    assert shown_error("", "", in_full=False) is None


def test_messages_of_servers_in_events_are_for_operators() -> None:
    data = {"attempt": 1, "remote_id": "http://10.0.0.7/1", "evidence": "10.0.0.7 says so", "what_comes": 1}
    data |= {"error": {"code": "run_failed", "message": SAID}}
    assert shown_event(data, in_full=True) == data
    assert shown_event(data, in_full=False) == {
        "attempt": 1,
        "error": {"code": "run_failed", "message": TEXTS["run_failed"]},
    }


def test_evidence_is_for_operators() -> None:
    assert shown_evidence("http://10.0.0.7 says so", in_full=False) is None
    assert shown_evidence("", in_full=True) is None
    assert shown_evidence("answered", in_full=True) == "answered"
