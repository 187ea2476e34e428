"""The answers that a client may get depend on the fault."""

from __future__ import annotations

import pytest

from verification.proving.records import Answer
from verification.proving.submit_answers import ALWAYS, AWAY, DATABASE, gateway_findings


def wrongs(may: str, status: int, *, took: float = 0.1, retry_after: str = "5", at: float = 5.0) -> list[str]:
    return gateway_findings([Answer(status, retry_after, at, took)], may, 0.0, 10.0)


@pytest.mark.parametrize(
    ("may", "status", "took", "is_wrong"),
    [
        (ALWAYS, 202, 3.4, False),
        (ALWAYS, 202, 3.6, True),
        (ALWAYS, 503, 0.1, True),
        (ALWAYS, 0, 0.1, True),
        (DATABASE, 503, 0.1, False),
        (DATABASE, 202, 12.0, False),
        (DATABASE, 0, 30.0, True),
        (AWAY, 0, 0.1, False),
        (AWAY, 500, 0.1, True),
        (DATABASE, 500, 0.1, True),
    ],
)
def test_each_fault_has_its_answers(may, status, took, is_wrong):
    assert bool(wrongs(may, status, took=took)) is is_wrong


def test_a_503_needs_a_retry_after():
    assert wrongs(DATABASE, 503, retry_after="") == ["a submit got 503 without Retry-After"]


def test_only_requests_during_the_fault_count():
    assert wrongs(ALWAYS, 500, at=11.0) == []
