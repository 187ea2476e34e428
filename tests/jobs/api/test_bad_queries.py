"""Bad query parameters and an unavailable database are answered with problem+json."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.db import OperationalError, connection

from gpus.models import ModelConfig
from jobs.models import Job
from tests.support.api_harness import Account
from tests.support.problems import JOB, SUBMIT, problem


@pytest.mark.parametrize("cursor", ["x", "%00", "cD0lMDA=", "bz0tMQ==", "cD3DqQ==", "!!!"])
def test_a_bad_cursor_is_named(acme: Account, cursor: str) -> None:
    problem(acme.client.get(f"/api/v1/queue/jobs?cursor={cursor}"), 400, "bad_cursor", "/cursor")


@pytest.mark.parametrize(
    ("query", "pointer", "code"),
    [
        ("status=sleeping", "/status", "invalid_parameter"),
        ("limit=0", "/limit", "invalid_parameter"),
        ("limit=ten", "/limit", "invalid_parameter"),
        ("limit=201", "/limit", "invalid_parameter"),
        ("created_after=yesterday", "/created_after", "invalid_parameter"),
        ("created_after=2026-02-01T00:00:00", "/created_after", "invalid_parameter"),
        ("created_before=0001-01-01T00:00:00%2B23:59", "/created_before", "invalid_parameter"),
        ("tag=%00", "/tag", "invalid_parameter"),
        ("model=", "/model", "invalid_parameter"),
        ("colour=red", "/colour", "unknown_parameter"),
    ],
)
def test_a_bad_filter_is_named(acme: Account, query: str, pointer: str, code: str) -> None:
    body = problem(acme.client.get(f"/api/v1/queue/jobs?{query}"), 400, code, pointer)
    assert body["errors"][0]["in"] == "query"


def test_a_refused_parameter_is_answered_with_those_that_exist(acme: Account) -> None:
    body = problem(acme.client.get("/api/v1/usage?format=csv"), 400, "unknown_parameter", "/format")
    assert "The route takes as, by, delimiter, from, to." in body["detail"]


@pytest.mark.parametrize("job_id", ["01J0000000000000000000000A", "x", "%00", "é" * 30, "0" * 27])
def test_an_unknown_job_is_unknown(acme: Account, job_id: str) -> None:
    base = f"/api/v1/queue/jobs/{job_id}"
    problem(acme.client.get(base), 404, "unknown_job", "/job_id")
    problem(acme.client.get(f"{base}/events"), 404, "unknown_job", "/job_id")
    problem(acme.client.post(f"{base}/cancel"), 404, "unknown_job", "/job_id")


@pytest.fixture
def database_away() -> Iterator[None]:
    def away(*_: Any) -> None:
        raise OperationalError("connection refused")

    with connection.execute_wrapper(away):
        yield


def test_without_a_database_nothing_is_accepted(
    acme: Account, zimg: ModelConfig, database_away: None
) -> None:
    for answer in (
        acme.client.post(SUBMIT, JOB, format="json"),
        acme.client.get("/api/v1/queue/jobs"),
        acme.client.get("/api/v1/queue/stats"),
    ):
        body = problem(answer, 503, "database_unavailable")
        assert body["retryable"] is True
        assert answer["Retry-After"]


def test_a_database_lost_in_the_middle_of_a_submit_is_no_202(acme: Account, zimg: ModelConfig) -> None:
    acme.client.post(SUBMIT, JOB, format="json")  # key and model are cached now

    def away(execute: Any, sql: str, *rest: Any) -> Any:
        if "jobs_event" in sql:
            raise OperationalError("server closed the connection")
        return execute(sql, *rest)

    with connection.execute_wrapper(away):
        problem(acme.client.post(SUBMIT, JOB, format="json"), 503, "database_unavailable")
    assert Job.objects.count() == 1


def test_an_internal_error_is_a_problem_without_details(
    acme: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise RuntimeError("secret detail")

    monkeypatch.setattr("jobs.api.jobs.list_jobs", broken)
    answer = acme.client.get("/api/v1/queue/jobs")
    problem(answer, 500, "internal_error")
    assert b"secret" not in answer.content
