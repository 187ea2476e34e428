"""Submit limits: the errors and their Retry-After, and that temporary refusals are not stored under a key."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from foundation.http_api import json_parser
from gpus.errors import LeasingUnavailable
from gpus.models import ModelConfig, Server
from jobs.models import IdempotencyKey, Job, Rollup
from jobs.submission.idempotency import earlier_batch
from tests.support.api_harness import Account, ApiHarness, make_model
from tests.support.api_jobs import make_job
from tests.support.factories import make_running
from tests.support.fakes import ManualClock
from tests.support.limits import BATCH, JOB, REJECT, limit, server, submit, used
from tests.support.problems import problem

__all__ = ["server"]


NOON = datetime(2026, 3, 4, 12, tzinfo=UTC)


# -- waiting jobs -----------------------------------------------------------------------------


def test_a_tenant_with_a_full_queue_gets_retry_after(
    acme: Account, other: Account, zimg: ModelConfig
) -> None:
    limit(acme, max_queued=2)
    assert [submit(acme).status_code for _ in range(2)] == [202, 202]
    refused = submit(acme)
    content = problem(refused, 429, "tenant_queue_full")
    assert content["retryable"] is True
    assert int(refused["Retry-After"]) == content["retry_after_seconds"] == 60, "no job ended recently"
    assert Job.objects.count() == 2
    assert submit(other).status_code == 202, "the limit is of that tenant only"


def test_a_model_with_a_full_queue_refuses_every_tenant(acme: Account, other: Account) -> None:
    make_model("zimg", max_queued=1)
    make_model("flux")
    assert submit(acme).status_code == 202
    problem(submit(other), 429, "model_queue_full")
    assert submit(other, JOB | {"model": "flux"}).status_code == 202


@pytest.mark.parametrize(("state", "counts"), [
    ("queued", True), ("retrying", True), ("scheduled", True), ("running", False), ("completed", False),
])  # fmt: skip
def test_only_waiting_jobs_count(acme: Account, zimg: ModelConfig, state: str, counts: bool) -> None:
    limit(acme, max_queued=1)
    make_job(acme.tenant, state)
    assert submit(acme).status_code == (429 if counts else 202)


def test_retry_after_is_the_mean_time_between_two_ends(
    acme: Account, zimg: ModelConfig, api: ApiHarness
) -> None:
    api.clock = ManualClock(NOON)
    limit(acme, max_queued=1)
    submit(acme)
    minute = NOON - timedelta(minutes=3)
    Rollup.objects.create(
        span_seconds=60, at=minute, model="zimg", tenant=acme.tenant, completed=60, failed=40
    )
    old = NOON - timedelta(minutes=30)
    Rollup.objects.create(span_seconds=60, at=old, model="zimg", tenant=acme.tenant, completed=5000)
    assert submit(acme)["Retry-After"] == "6", "100 ends in 600 s"


def test_a_full_queue_is_judged_job_by_job_in_a_batch(acme: Account, zimg: ModelConfig) -> None:
    make_model("flux", max_queued=1)
    limit(acme, max_queued=3)
    jobs = [JOB, JOB | {"model": "flux"}, JOB | {"model": "flux"}, JOB, JOB]
    answer = acme.client.post(BATCH, {"jobs": jobs}, format="json")
    assert answer.status_code == 202
    content = [item.get("code", "accepted") for item in answer.json()["jobs"]]
    assert content == ["accepted", "accepted", "model_queue_full", "accepted", "tenant_queue_full"]
    assert answer.json()["jobs"][2]["retry_after_seconds"] >= 1
    assert answer.json()["jobs"][2]["errors"][0]["pointer"] == "/jobs/2"


def test_a_temporary_refusal_is_not_stored_under_a_key(acme: Account, zimg: ModelConfig) -> None:
    limit(acme, max_queued=1)
    held = submit(acme).json()["job_id"]
    problem(submit(acme, HTTP_IDEMPOTENCY_KEY="k"), 429, "tenant_queue_full")
    assert not IdempotencyKey.objects.exists()
    limit(acme, max_queued=2)
    accepted = submit(acme, HTTP_IDEMPOTENCY_KEY="k")
    assert accepted.status_code == 202
    assert "Idempotency-Replayed" not in accepted
    repeated = submit(acme, HTTP_IDEMPOTENCY_KEY="k")
    assert repeated.status_code == 202, "the queue is full again, and the job is in it"
    assert repeated.json()["job_id"] == accepted.json()["job_id"] != held


def test_a_repeated_batch_retries_only_temporary_refusals(acme: Account, zimg: ModelConfig) -> None:
    limit(acme, max_queued=1)
    body = {"jobs": [JOB, JOB, JOB | {"model": "nope"}]}

    def send() -> list[dict[str, Any]]:
        answer = acme.client.post(BATCH, body, format="json", HTTP_IDEMPOTENCY_KEY="b")
        assert answer.status_code == 202
        return answer.json()["jobs"]  # type: ignore[no-any-return]

    first = send()
    assert [item.get("code") for item in first] == [None, "tenant_queue_full", "unknown_model"]
    still = send()
    assert [item.get("code") for item in still] == [None, "tenant_queue_full", "unknown_model"]
    assert Job.objects.count() == 1
    limit(acme, max_queued=5)
    second = send()
    assert [item.get("code") for item in second] == [None, None, "unknown_model"]
    assert second[0]["job_id"] == first[0]["job_id"]
    third = send()
    assert [item.get("job_id") for item in third] == [item.get("job_id") for item in second]
    assert Job.objects.count() == 2, "no job twice"


# -- rate --------------------------------------------------------------------------------------


def test_a_tenant_above_its_rate_gets_its_limit_in_the_error(
    acme: Account, other: Account, zimg: ModelConfig
) -> None:
    limit(acme, submits_per_second=0.5, submit_burst=2)
    first = submit(acme)
    assert first["RateLimit-Policy"] == '"submits";q=2;w=4'
    assert first["RateLimit"] == '"submits";r=1;t=2'
    submit(acme)
    refused = submit(acme)
    problem(refused, 429, "rate_limited")
    assert refused["RateLimit"].startswith('"submits";r=0;t=')
    assert int(refused["Retry-After"]) == 2
    assert Job.objects.count() == 2
    assert "RateLimit" not in submit(other), "null is no limit"


def test_a_batch_costs_a_token_per_job(acme: Account, zimg: ModelConfig) -> None:
    limit(acme, submits_per_second=1.0, submit_burst=4)
    content = problem(acme.client.post(BATCH, {"jobs": [JOB] * 5}, format="json"), 422, "batch_exceeds_burst")
    assert content["retryable"] is False, "the batch could never be accepted"
    assert acme.client.post(BATCH, {"jobs": [JOB] * 2}, format="json")["RateLimit"].startswith(
        '"submits";r=1'
    )
    problem(acme.client.post(BATCH, {"jobs": [JOB] * 2}, format="json"), 429, "rate_limited")
    assert Job.objects.count() == 2


def test_the_retry_after_of_a_batch_covers_all_its_tokens(acme: Account, zimg: ModelConfig) -> None:
    limit(acme, submits_per_second=1.0, submit_burst=4)
    submit(acme)
    refused = acme.client.post(BATCH, {"jobs": [JOB] * 4}, format="json")
    problem(refused, 429, "rate_limited")
    assert int(refused["Retry-After"]) == 2, "the request has taken one of three tokens"


@pytest.mark.parametrize("path", ["submit", "submit-batch", "estimate"])
def test_an_invalid_body_costs_a_token(
    acme: Account, zimg: ModelConfig, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit(acme, submits_per_second=0.01, submit_burst=2)
    read: list[bytes] = []
    real = json_parser.read_json
    monkeypatch.setattr(json_parser, "read_json", lambda raw, *more: read.append(raw) or real(raw, *more))
    url = f"/api/v1/queue/{path}"
    statuses = [
        acme.client.post(url, b"[" * number + b"]" * number, content_type="application/json").status_code
        for number in (1, 2, 3, 4)
    ]
    assert statuses == [422, 422, 429, 429]
    assert len(read) == 2
    refused = acme.client.post(url, b"{", content_type="application/json")
    assert int(refused["Retry-After"]) >= 1


def test_other_refusals_have_rate_headers_too(acme: Account, zimg: ModelConfig) -> None:
    limit(acme, submits_per_second=5.0, max_queued=1)
    submit(acme)
    assert submit(acme)["RateLimit"].startswith('"submits";r=3')


def test_without_redis_no_submit_is_rate_limited(acme: Account, zimg: ModelConfig, api: ApiHarness) -> None:
    limit(acme, submits_per_second=0.001, submit_burst=1)
    api.leases.away = True
    answers = [submit(acme) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [202] * 3
    assert "RateLimit" not in answers[0]


# -- daily quota --------------------------------------------------------------------------------------


def test_an_exhausted_quota_is_refused_until_midnight(
    acme: Account, other: Account, zimg: ModelConfig, api: ApiHarness
) -> None:
    api.clock = clock = ManualClock(NOON)
    limit(acme, daily_gpu_seconds=100.0)
    used(acme, NOON - timedelta(hours=13), 1000.0)
    used(acme, NOON - timedelta(hours=2), 99.0)
    assert submit(acme).status_code == 202, "yesterday is over"
    used(acme, NOON, 1.0)
    refused = submit(acme)
    problem(refused, 429, "quota_exhausted")
    assert refused["Retry-After"] == str(12 * 3600)
    assert submit(other).status_code == 202
    clock.move(12 * 3600)
    assert submit(acme).status_code == 202


def test_running_attempts_count_for_their_time_of_today(
    acme: Account, zimg: ModelConfig, api: ApiHarness
) -> None:
    midnight = NOON.replace(hour=0)
    api.clock = ManualClock(midnight + timedelta(seconds=99))
    limit(acme, daily_gpu_seconds=100.0)
    make_running(make_job(acme.tenant, "queued"), at=midnight - timedelta(hours=5))
    assert submit(acme).status_code == 202
    api.clock = ManualClock(midnight + timedelta(seconds=101))
    problem(submit(acme), 429, "quota_exhausted")


def test_the_quota_is_read_before_the_transaction(acme: Account, zimg: ModelConfig) -> None:
    limit(acme, daily_gpu_seconds=100.0)
    with CaptureQueriesContext(connection) as queries:
        assert submit(acme).status_code == 202
    statements = [query["sql"] for query in queries.captured_queries]
    sums = [place for place, sql in enumerate(statements) if "jobs_rollup" in sql]
    assert sums
    assert max(sums) < next(place for place, sql in enumerate(statements) if "SAVEPOINT" in sql)


# -- free slots ------------------------------------------------------------------------


def test_a_hung_redis_costs_a_rate_limited_tenant_one_time_out(
    acme: Account, server: Server, api: ApiHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A submit responds within 3.5 s: only one of its calls to Redis waits for the time-out."""
    api.clock = clock = ManualClock(NOON)
    limit(acme, submits_per_second=1000.0, max_queued=1000, daily_gpu_seconds=1000.0)
    calls: list[str] = []

    def hang(name: str) -> Any:
        def call(*_: Any, **__: Any) -> Any:
            calls.append(name)
            clock.move(3.0)
            raise LeasingUnavailable("a time-out")

        return call

    for name in ("take_tokens", "spare_slots", "push"):
        monkeypatch.setattr(api.leases, name, hang(name))
    assert submit(acme).status_code == 202
    assert (calls, clock.elapsed) == (["take_tokens"], 3.0)
    problem(submit(acme, REJECT), 503, "leasing_unavailable")
    assert clock.elapsed == 3.0, "the circuit is open: no other request waits for Redis"


def test_concurrent_repetitions_of_a_batch_create_each_job_once(
    acme: Account, zimg: ModelConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both read that a job is to be retried; the second one detects the first before its commit and reads
    again."""
    limit(acme, max_queued=1)
    body = {"jobs": [JOB, JOB]}

    def send() -> Any:
        return acme.client.post(BATCH, body, format="json", HTTP_IDEMPOTENCY_KEY="b").json()["jobs"]

    assert send()[1]["code"] == "tenant_queue_full"
    stale = earlier_batch(acme.tenant.pk, "b", IdempotencyKey.objects.get().fingerprint)
    limit(acme, max_queued=9)
    first = send()
    looks = [stale]

    def look(*given: Any) -> Any:
        return looks.pop() if looks else earlier_batch(*given)

    monkeypatch.setattr("jobs.submission.submit.earlier_batch", look)
    assert [item["job_id"] for item in send()] == [item["job_id"] for item in first]
    assert not looks
    assert Job.objects.count() == 2


@pytest.mark.django_db(transaction=True)
def test_a_limit_read_during_its_change_is_not_cached(acme: Account, api: ApiHarness) -> None:
    limits = api.limit_caches.limits
    with transaction.atomic():
        limit(acme, max_queued=0)
        limits.get(acme.tenant.pk, lambda: "as another thread reads it")
    assert limits.peek(acme.tenant.pk) is None
