"""Invalid answers raise only the client's documented errors."""

from __future__ import annotations

import pytest

from dispatcher_client.errors import NoAnswer, Problem, read_problem
from dispatcher_client.spool import _read_entry
from dispatcher_client.stream import EventParser, _read_data
from dispatcher_client.transport import Answer

DEEP = b"[" * 100_000
JSON = {"content-type": "application/problem+json"}


@pytest.mark.parametrize("body", [b'{"code": []}', b'{"code": {"a": 1}}', DEEP])
def test_an_error_code_that_is_not_text_is_ignored(body: bytes) -> None:
    found = read_problem(422, JSON, body)
    assert isinstance(found, Problem)
    assert (found.code, found.is_documented) == ("http_422", False)


@pytest.mark.parametrize(
    "text", ["Wed, 21 Oct 2015 07:28:00" + "1" * 400, "Wed, 21 Oct 99999 07:28:00", "Wed", ""]
)
def test_a_retry_after_out_of_range_is_ignored(text: str) -> None:
    assert read_problem(429, {"retry-after": text}, b"").retry_after_seconds is None


def test_a_retry_after_of_thousands_of_digits_is_a_number() -> None:
    assert read_problem(429, {"retry-after": " " + "9" * 5000}, b"").retry_after_seconds == 999_999_999


def test_an_answer_that_is_nested_too_deeply_counts_as_none() -> None:
    with pytest.raises(NoAnswer):
        Answer(200, {}, DEEP).json_object()
    assert _read_entry(DEEP) is None
    assert _read_data(DEEP.decode()) == DEEP.decode()


def test_a_pause_of_thousands_of_digits_is_the_longest_one() -> None:
    parser = EventParser("", 10_000)
    assert parser.feed(b"retry: " + b"9" * 5000 + b"\n") == []
    assert parser.pause_seconds == 30.0
