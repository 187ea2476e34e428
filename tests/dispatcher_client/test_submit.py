"""Submit: one key for all tries, and a defined outcome for every answer."""

from __future__ import annotations

import threading
import time
from datetime import UTC, datetime
from email.utils import formatdate

import pytest

from dispatcher_client import (
    Busy,
    Client,
    Invalid,
    Job,
    NoAnswer,
    NotAllowed,
    NotAuthenticated,
    Problem,
    Unavailable,
)
from dispatcher_client.errors import read_problem
from dispatcher_client.transport import pause_seconds
from tests.dispatcher_client.scripted import (
    Act,
    Scripted,
    behave,
    commit_and_drop,
    drop,
    hang,
    problem,
    raw,
    says,
    trickle,
)
from tests.support.new_client import NewClient


def test_a_submit_sends_its_fields_and_returns_the_job(server: Scripted, client: Client) -> None:
    job = client.submit("flux", {"n": 1}, priority=2, tags=("a",), deadline_seconds=60, max_retries=0)
    assert (job.job_id, job.status, job.outcome, job.position) == ("JOB0", "queued", "queued", 1)
    assert job.starts_in == {"p50_seconds": 1.5, "p90_seconds": 6.0, "seen": 9}
    assert not job.is_over
    asked = server.asked[0]
    assert (asked.method, asked.path) == ("POST", "/queue/submit")
    assert asked.headers["authorization"] == "Bearer the-key"
    assert asked.body == {
        "model": "flux",
        "payload": {"n": 1},
        "priority": 2,
        "tags": ["a"],
        "deadline_seconds": 60,
        "max_retries": 0,
    }


GARBAGE = {
    "no HTTP": raw(b"\x00\xff garbage\r\n\r\n"),
    "half a header": raw(b"HTTP/1.1 202 Acc"),
    "half a body": raw(b'HTTP/1.1 202 Accepted\r\nContent-Length: 99\r\n\r\n{"job_id": "X", "status": "q"}'),
    "half a refusal": raw(
        b"HTTP/1.1 422 X\r\nContent-Type: application/problem+json\r\nContent-Length: 99\r\n\r\n{"
    ),
    "a page": says(202, b"<html>Welcome to the hotel's network</html>"),
    "a list": says(202, [1]),
    "no job": says(202, {"hello": 1}),
    "nothing": says(202, b""),
    "not UTF-8": says(202, b'{"job_id": "\xff"}'),
    "a bad gateway": says(502, b"<html>bad gateway</html>"),
    "no answer": drop,
    "a lost answer": commit_and_drop,
}


@pytest.mark.parametrize("act", GARBAGE.values(), ids=GARBAGE.keys())
def test_a_missing_or_invalid_answer_is_retried_under_the_same_key(
    server: Scripted, client: Client, act: Act
) -> None:
    server.will(act, act)
    job = client.submit("flux", {})
    assert len(server.asked) == 3
    assert len(set(server.keys)) == 1
    assert server.jobs == {server.keys[0]: job.job_id}


def test_two_submits_have_two_keys_and_a_given_key_is_kept(server: Scripted, client: Client) -> None:
    client.submit("flux", {})
    client.submit("flux", {})
    client.submit("flux", {}, idempotency_key="order-7")
    assert len(set(server.keys)) == 3
    assert server.keys[2] == "order-7"


@pytest.mark.parametrize("status", [429, 503])
def test_retry_after_is_obeyed(server: Scripted, client: Client, status: int) -> None:
    server.will(problem(status, "database_unavailable", retryable=True, Retry_After="1"))
    began = time.monotonic()
    client.submit("flux", {})
    assert time.monotonic() - began >= 1
    assert len(server.asked) == 2


def test_a_server_that_asks_for_more_time_than_there_is_gets_no_second_try(
    server: Scripted, new_client: NewClient
) -> None:
    server.will(problem(503, "database_unavailable", retryable=True, Retry_After="3600"))
    with pytest.raises(Unavailable) as raised:
        new_client(server.url, "k", retry_seconds=5).submit("flux", {})
    assert (raised.value.code, raised.value.retry_after_seconds) == ("database_unavailable", 3600)
    assert raised.value.idempotency_key == server.keys[0]
    assert len(server.asked) == 1


def test_pauses_grow_are_bounded_and_never_shorter_than_asked() -> None:
    assert [pause_seconds(n, chance=lambda: 1.0) for n in (1, 2, 3)] == [0.01, 0.02, 0.04]
    assert pause_seconds(100, chance=lambda: 1.0) == 10
    assert pause_seconds(1, chance=lambda: 0.0) == 0.005
    assert pause_seconds(1, 7.0, chance=lambda: 0.0) == 7
    assert pause_seconds(1, 3600.0, chance=lambda: 1.0) == 45


def test_retry_after_may_be_a_date() -> None:
    in_a_minute = {"retry-after": formatdate(time.time() + 60, usegmt=True)}
    assert 50 < (read_problem(503, in_a_minute, b"").retry_after_seconds or 0) <= 60
    assert read_problem(503, {"retry-after": "soon"}, b"").retry_after_seconds is None


def test_a_hanging_request_is_retried(server: Scripted, over: threading.Event, new_client: NewClient) -> None:
    server.will(hang(over))
    job = new_client(server.url, "k", timeout_seconds=2).submit("flux", {})
    assert server.jobs == {server.keys[0]: job.job_id}
    assert len(server.asked) == 2


def test_a_dripping_answer_times_out(server: Scripted, over: threading.Event, new_client: NewClient) -> None:
    server.will(trickle(over))
    began = time.monotonic()
    new_client(server.url, "k", timeout_seconds=2).submit("flux", {})
    assert time.monotonic() - began < 10
    assert len(server.asked) == 2


def test_without_a_server_the_error_has_the_key_for_a_later_try(
    server: Scripted, nowhere: str, new_client: NewClient
) -> None:
    began = time.monotonic()
    with pytest.raises(NoAnswer) as raised:
        new_client(nowhere, "k", retry_seconds=0.2).submit("flux", {})
    assert time.monotonic() - began < 10
    key = raised.value.idempotency_key
    new_client(server.url, "k").submit("flux", {}, idempotency_key=key)
    assert server.keys == [key]


@pytest.mark.parametrize(
    ("act", "kind", "code"),
    [
        (problem(422, "validation_failed", pointer="/priority"), Invalid, "validation_failed"),
        (problem(413, "payload_too_large"), Invalid, "payload_too_large"),
        (problem(401, "invalid_key"), NotAuthenticated, "invalid_key"),
        (says(403, b"<html>the proxy says no</html>", Content_Type="text/html"), NotAllowed, "http_403"),
        (says(418, b"[]"), Problem, "http_418"),
    ],
)
def test_a_refusal_is_raised_at_once(
    server: Scripted, client: Client, act: Act, kind: type[Problem], code: str
) -> None:
    server.will(act)
    with pytest.raises(kind) as raised:
        client.submit("flux", {})
    assert (raised.value.code, raised.value.retryable) == (code, False)
    assert raised.value.is_documented == (not code.startswith("http_"))
    assert len(server.asked) == 1


def test_a_refusal_has_the_place_of_the_error(server: Scripted, client: Client) -> None:
    server.will(problem(422, "validation_failed", pointer="/priority"))
    with pytest.raises(Invalid, match="422 validation_failed: about validation_failed") as raised:
        client.submit("flux", {}, priority=99)
    assert raised.value.pointer == "/priority"
    assert raised.value.errors[0].place == "body"


def test_the_retryable_field_overrides_the_status(server: Scripted, client: Client) -> None:
    server.will(
        problem(503, "not_today", retryable=False), problem(409, "in_a_moment", retryable=True), behave
    )
    with pytest.raises(Problem, match="not_today"):
        client.submit("flux", {})
    client.submit("flux", {})
    assert len(server.asked) == 3


def test_the_key_is_not_sent_to_a_redirect(server: Scripted, client: Client) -> None:
    other = Scripted()
    server.will(says(307, b"", Location=f"{other.url}/api/v1/queue/submit"))
    with pytest.raises(Problem) as raised:
        client.submit("flux", {})
    assert raised.value.status == 307
    assert other.asked == []
    other.close()


def test_a_payload_that_cannot_be_sent_is_no_network_error(
    server: Scripted, client: Client, new_client: NewClient
) -> None:
    with pytest.raises(ValueError, match="JSON"):
        client.submit("flux", {"x": float("nan")})
    with pytest.raises(TypeError):
        client.submit("flux", {"x": object()})
    with pytest.raises(ValueError, match="idempotency key"):
        client.submit("flux", {}, idempotency_key="with space")
    for url in ("127.0.0.1:8000", "ftp://host", "http://"):
        with pytest.raises(ValueError, match="URL"):
            new_client(url, "k")
    with pytest.raises(ValueError, match="key"):
        new_client(server.url, "k\r\nX-Evil: 1")
    assert server.asked == []


def test_a_batch_has_an_answer_for_each(server: Scripted, client: Client) -> None:
    refused = {"status": 422, "code": "unknown_model", "detail": "No such model.", "retryable": False}
    accepted = {"job_id": "J", "status": "queued", "outcome": "queued", "position": 4}
    server.will(drop, says(202, {"jobs": [accepted]}), says(202, {"jobs": [accepted, refused]}))
    first, second = client.submit_batch([{"model": "a", "payload": {}}, {"model": "b", "payload": {}}])
    assert isinstance(first, Job)
    assert first.job_id == "J"
    assert isinstance(second, Invalid)
    assert second.code == "unknown_model"
    assert len(server.asked) == 3, "one that is not answered whole is sent again"
    assert len(set(server.keys)) == 1


def test_the_newer_fields_are_sent_as_the_api_has_them(server: Scripted, client: Client) -> None:
    at = datetime(2026, 2, 1, 12, tzinfo=UTC)
    client.submit("flux", {}, run_at=at, max_run_seconds=5, if_busy="queue")
    body = server.asked[0].body
    assert (body["run_at"], body["max_run_seconds"], body["if_busy"]) == (at.isoformat(), 5, "queue")
    with pytest.raises(ValueError, match="zone"):
        client.submit("flux", {}, run_at=datetime(2026, 2, 1))


@pytest.mark.parametrize(
    ("status", "code"), [(503, "busy"), (503, "no_capacity"), (429, "tenant_running_full")]
)
def test_if_busy_reject_raises_at_once(server: Scripted, client: Client, status: int, code: str) -> None:
    server.will(problem(status, code, retryable=True, Retry_After="1"))
    with pytest.raises(Busy) as refused:
        client.submit("flux", {}, if_busy="reject")
    assert (refused.value.code, refused.value.retry_after_seconds) == (code, 1.0)
    assert len(server.asked) == 1


def test_a_limit_that_ends_in_time_is_waited_for(server: Scripted, client: Client) -> None:
    server.will(problem(429, "rate_limited", retryable=True, Retry_After="1"))
    began = time.monotonic()
    assert client.submit("flux", {}).job_id
    assert time.monotonic() - began >= 1.0
    assert [asked.key for asked in server.asked] == [server.asked[0].key] * 2


def test_a_limit_that_ends_too_late_raises_at_once(server: Scripted, client: Client) -> None:
    server.will(problem(429, "quota_exhausted", retryable=True, Retry_After="40000"))
    with pytest.raises(Unavailable) as refused:
        client.submit("flux", {})
    assert (refused.value.code, refused.value.retry_after_seconds) == ("quota_exhausted", 40000.0)
    assert len(server.asked) == 1
