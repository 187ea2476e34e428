"""Retry-After in the problems of the API, whatever raised them."""

from __future__ import annotations

import pytest
from django.db import OperationalError
from rest_framework.exceptions import Throttled

from foundation.http_api.problems import Problem
from gpus.errors import LeasingUnavailable
from jobs.api.errors import problem_of


@pytest.mark.parametrize(
    ("error", "status", "seconds"),
    [
        (OperationalError("gone"), 503, 5),
        (LeasingUnavailable("gone"), 503, 5),
        (Throttled(wait=7), 429, 7),
        (Throttled(), 429, 5),
        (Problem(503, "some_code", "Some reason.", retry_after_seconds=0.2), 503, 1),
    ],
)
def test_every_429_and_503_has_retry_after_in_its_body(error: Exception, status: int, seconds: int) -> None:
    problem = problem_of(error)
    assert problem.status == status
    assert problem.as_json()["retry_after_seconds"] == seconds
    assert problem.headers["Retry-After"] == str(seconds)


def test_permanent_errors_have_no_retry_after() -> None:
    assert "retry_after_seconds" not in Problem(422, "some_code", "Some reason.").as_json()
