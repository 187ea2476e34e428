"""Get, wait, cancel."""

from __future__ import annotations

import threading
import time
from datetime import UTC, datetime
from urllib.parse import parse_qs, urlsplit

import pytest

from dispatcher_client import (
    Client,
    Conflict,
    NoAnswer,
    NotFound,
    NotOver,
    PartialOutput,
    Progress,
    Timings,
)
from tests.dispatcher_client.scripted import Scripted, drop, problem, raw, says
from tests.support.new_client import NewClient

JOB = "01J00000000000000000000000"
RUNNING = says(200, {"job_id": JOB, "status": "running"})


def test_get_is_repeated_until_it_is_answered(server: Scripted, client: Client) -> None:
    server.will(drop, problem(503, "database_unavailable", retryable=True), raw(b"?"))
    assert client.get(JOB).result == {"n": 1}
    assert [asked.path for asked in server.asked] == [f"/queue/jobs/{JOB}"] * 4


def test_progress_output_and_timings_are_typed(server: Scripted, client: Client) -> None:
    timings = {"waited_seconds": 2, "ran_seconds": None, "gpu_seconds": 0.5, "total_seconds": 3.5}
    body = {
        "job_id": JOB,
        "status": "running",
        "progress": {"value": 0.62, "text": None, "at": "2030-01-01T12:00:00+00:00", "newer": 1},
        "partial_output": {"output": ["So ", {"preview": 1}, "it"], "left_out": 3},
        "timings": timings,
        "payload": {"n": 1},
    }
    server.will(says(200, body))
    job = client.get(JOB, with_payload=True)
    assert server.asked[-1].path == f"/queue/jobs/{JOB}?include=payload"
    assert job.progress == Progress(0.62, None, datetime(2030, 1, 1, 12, tzinfo=UTC))
    assert job.partial_output == PartialOutput(("So ", {"preview": 1}, "it"), 3)
    assert job.partial_output.text == "So it"
    assert (job.timings, job.payload) == (Timings(2.0, None, 0.5, 3.5), {"n": 1})


def test_without_progress_and_timings_they_are_none(server: Scripted, client: Client) -> None:
    server.will(RUNNING)
    job = client.get(JOB)
    assert (job.progress, job.partial_output, job.timings, job.payload) == (None, None, None, None)
    server.will(says(200, {"job_id": JOB, "status": "running", "progress": {"value": "much"}}))
    with pytest.raises(NoAnswer):
        _ = client.get(JOB).progress


def test_wait_survives_errors_and_restarts(server: Scripted, client: Client) -> None:
    server.status = "completed"
    server.will(RUNNING, drop, problem(503, "database_unavailable", retryable=True), raw(b"?"), RUNNING)
    job = client.wait(JOB, 60)
    assert (job.is_over, job.status) == (True, "completed")
    assert len(server.asked) == 6


def test_wait_outlives_the_budget_of_a_single_call(server: Scripted, new_client: NewClient) -> None:
    """A restart may take longer than a submit is retried."""
    server.status = "failed"
    server.will(drop, drop, drop)
    assert new_client(server.url, "k", retry_seconds=0).wait(JOB).status == "failed"


def test_wait_asks_the_server_to_hold_the_poll(server: Scripted, client: Client) -> None:
    server.status = "completed"
    client.wait(JOB)
    client.wait(JOB, 7)
    asked = [float(parse_qs(urlsplit(one.path).query)["wait"][0]) for one in server.asked]
    assert asked[0] == 30
    assert 6 < asked[1] <= 7


def test_wait_times_out(server: Scripted, client: Client) -> None:
    server.status = "running"
    with pytest.raises(NotOver) as raised:
        client.wait(JOB, 0.3)
    assert raised.value.job.status == "running"
    assert isinstance(raised.value, TimeoutError)
    with pytest.raises(NotOver):
        client.wait(JOB, 0)


def test_wait_times_out_without_a_server(nowhere: str, new_client: NewClient) -> None:
    with pytest.raises(NoAnswer):
        new_client(nowhere, "k").wait(JOB, 0.3)


def test_a_server_that_does_not_hold_polls_is_polled_slowly(server: Scripted, client: Client) -> None:
    server.status = "running"
    with pytest.raises(NotOver):
        client.wait(JOB, 1)
    assert len(server.asked) < 20, "at ten milliseconds, doubling"


def test_a_poll_that_is_never_answered_is_repeated(
    server: Scripted, client: Client, over: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dispatcher_client.calls._POLL_MARGIN_SECONDS", 0.2)
    monkeypatch.setattr("dispatcher_client.job.MAX_POLL_SECONDS", 0.2)
    server.status = "completed"
    server.will(lambda handler, asked: over.wait(30) and None)
    began = time.monotonic()
    assert client.wait(JOB, 60).is_over
    assert time.monotonic() - began < 15


def test_wait_raises_at_once_for_an_unknown_job(server: Scripted, client: Client) -> None:
    server.will(problem(404, "unknown_job"), problem(404, "unknown_job"))
    for call in (client.get, client.wait):
        with pytest.raises(NotFound):
            call(JOB)


def test_cancel_is_repeated_until_it_is_answered(server: Scripted, client: Client) -> None:
    server.will(drop, problem(503, "database_unavailable", retryable=True))
    assert client.cancel(JOB) == "cancelled"
    assert [(asked.method, asked.path) for asked in server.asked] == [
        ("POST", f"/queue/jobs/{JOB}/cancel")
    ] * 3


def test_a_job_that_is_over_can_not_be_cancelled(server: Scripted, client: Client) -> None:
    server.will(problem(409, "not_cancellable"))
    with pytest.raises(Conflict):
        client.cancel(JOB)


def test_an_id_stays_a_part_of_the_path(server: Scripted, client: Client) -> None:
    client.get("../admin?x")
    assert server.asked[0].path == "/queue/jobs/..%2Fadmin%3Fx"
