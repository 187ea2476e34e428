from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.db import connection, connections
from django.test.utils import CaptureQueriesContext

from gpus.models import ModelConfig
from jobs.callbacks import guard
from jobs.models import IdempotencyKey, Job
from jobs.submission import insert
from jobs.submission import submit as submission
from tests.support.api_harness import Account, ApiHarness, account, key_client, make_model
from tests.support.factories import make_server
from tests.support.limits import limit
from tests.support.problems import problem

URL = "/api/v1/queue/submit-batch"
JOB: dict[str, Any] = {"model": "zimg", "payload": {"n": 1}}


def test_each_item_gets_its_own_result_in_order(acme: Account, zimg: ModelConfig, api: ApiHarness) -> None:
    make_server(model=zimg)
    jobs = [
        JOB,
        {"model": "nope", "payload": {}},
        JOB | {"priority": 0},
        7,
        JOB | {"callback_url": "http://10.0.0.1"},
        JOB,
    ]
    answer = acme.client.post(URL, {"jobs": jobs}, format="json")
    assert answer.status_code == 202, answer.content
    content = answer.json()["jobs"]
    assert [item.get("code") for item in content] == [
        None,
        "unknown_model",
        "validation_failed",
        "validation_failed",
        "callback_url_refused",
        None,
    ]
    assert content[1]["errors"][0]["pointer"] == "/jobs/1/model"
    assert content[2]["errors"][0]["pointer"] == "/jobs/2/priority"
    assert [content[0]["position"], content[5]["position"]] == [1, 2]
    assert [content[at]["starts_in"]["p90_seconds"] for at in (0, 5)] == [4.0, 8.0]
    assert [ticket.job_id for ticket in api.leases.line] == [content[0]["job_id"], content[5]["job_id"]]


def test_a_batch_keeps_its_order_in_the_queue(acme: Account, zimg: ModelConfig, api: ApiHarness) -> None:
    jobs = [{"model": "zimg", "payload": {"n": n}} for n in range(50)]
    acme.client.post(URL, {"jobs": jobs}, format="json")
    places = list(Job.objects.order_by("place_us").values_list("payload", flat=True))
    assert places == [{"n": n} for n in range(50)]
    assert len(set(Job.objects.values_list("place_us", flat=True))) == 50
    assert list(Job.objects.order_by("place_us").values_list("id", flat=True)) == [
        t.job_id for t in api.leases.line
    ]


def test_a_thousand_jobs_are_accepted_and_one_more_is_not(acme: Account, zimg: ModelConfig) -> None:
    assert acme.client.post(URL, {"jobs": [JOB] * 1000}, format="json").status_code == 202
    assert Job.objects.count() == 1000
    problem(acme.client.post(URL, {"jobs": [JOB] * 1001}, format="json"), 422, "validation_failed", "/jobs")
    problem(acme.client.post(URL, {"jobs": []}, format="json"), 422, "validation_failed", "/jobs")
    problem(acme.client.post(URL, [JOB], format="json"), 422, "validation_failed", "")


def test_a_repeated_batch_returns_the_first_response(acme: Account, zimg: ModelConfig) -> None:
    body = {"jobs": [JOB, {"model": "nope", "payload": {}}]}
    first = acme.client.post(URL, body, format="json", HTTP_IDEMPOTENCY_KEY="b1")
    make_model("nope")
    again = acme.client.post(URL, body, format="json", HTTP_IDEMPOTENCY_KEY="b1")
    assert again["Idempotency-Replayed"] == "true"
    assert again.json()["jobs"][0]["job_id"] == first.json()["jobs"][0]["job_id"]
    assert again.json()["jobs"][1]["code"] == "unknown_model"
    assert Job.objects.count() == 1
    problem(
        acme.client.post(URL, {"jobs": [JOB]}, format="json", HTTP_IDEMPOTENCY_KEY="b1"),
        422,
        "idempotency_conflict",
    )


def test_a_batch_without_accepted_jobs_is_not_stored_under_its_key(acme: Account) -> None:
    acme.client.post(URL, {"jobs": [JOB]}, format="json", HTTP_IDEMPOTENCY_KEY="b1")
    assert not IdempotencyKey.objects.exists()


def test_items_carry_their_own_keys(acme: Account, zimg: ModelConfig) -> None:
    one = JOB | {"idempotency_key": "k1"}
    content = acme.client.post(
        URL, {"jobs": [one, one, one | {"priority": 1}, JOB | {"idempotency_key": "k2"}]}, format="json"
    ).json()["jobs"]
    assert content[0]["job_id"] == content[1]["job_id"]
    assert content[1]["replayed"]
    assert content[2]["code"] == "idempotency_conflict"
    assert Job.objects.count() == 2
    single = acme.client.post("/api/v1/queue/submit", JOB, format="json", HTTP_IDEMPOTENCY_KEY="k1")
    assert single.json()["job_id"] == content[0]["job_id"]
    problem(
        acme.client.post(URL, {"jobs": [JOB]}, format="json", HTTP_IDEMPOTENCY_KEY="k2"),
        422,
        "idempotency_conflict",
    )


@pytest.mark.database
@pytest.mark.django_db(transaction=True)
def test_of_eight_concurrent_requests_with_one_key_one_creates_the_job() -> None:
    acme = account("acme")
    make_model("zimg")
    start = threading.Barrier(8)

    def submit(number: int) -> Any:
        try:
            start.wait(10)
            mine = key_client(acme.key)
            if number % 2:
                body = {"jobs": [JOB | {"idempotency_key": "k"}, JOB]}
                return mine.post(URL, body, format="json").json()["jobs"][0]["job_id"]
            return mine.post("/api/v1/queue/submit", JOB, format="json", HTTP_IDEMPOTENCY_KEY="k").json()[
                "job_id"
            ]
        finally:
            connections.close_all()

    with ThreadPoolExecutor(8) as threads:
        found = set(threads.map(submit, range(8)))
    assert len(found) == 1
    assert IdempotencyKey.objects.get().job_id in found
    assert Job.objects.count() == 1 + 4


@pytest.mark.database
def test_a_job_cannot_have_the_key_of_its_batch(acme: Account, zimg: ModelConfig) -> None:
    body = {"jobs": [JOB, JOB | {"idempotency_key": "b"}, JOB | {"idempotency_key": "i"}]}
    for _ in range(2):
        answer = acme.client.post(URL, body, format="json", HTTP_IDEMPOTENCY_KEY="b")
        assert answer.status_code == 202
        content = answer.json()["jobs"]
        assert [item.get("code") for item in content] == [None, "idempotency_conflict", None]
        assert content[1]["status"] == 422
        assert content[1]["errors"][0]["pointer"] == "/jobs/1/idempotency_key"
    assert Job.objects.count() == 2
    only = {"jobs": [JOB | {"idempotency_key": "c"}]}
    content = acme.client.post(URL, only, format="json", HTTP_IDEMPOTENCY_KEY="c").json()["jobs"]
    assert content[0]["code"] == "idempotency_conflict"


def test_no_name_of_a_callback_is_looked_up_at_submit(
    acme: Account, zimg: ModelConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    monkeypatch.setattr(guard, "resolve", lambda host, port: calls.append(host) or [])
    jobs = [JOB | {"callback_url": f"https://hangs{n}.example.com/"} for n in range(200)]
    jobs += [JOB | {"callback_url": f"http://{host}/"} for host in ("10.0.0.1", "localhost")]
    answer = acme.client.post(URL, {"jobs": jobs}, format="json")
    assert [item.get("code") for item in answer.json()["jobs"]] == [None] * 200 + ["callback_url_refused"] * 2
    assert calls == []


def test_refused_jobs_under_one_key_are_checked_once(
    acme: Account, zimg: ModelConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit(acme, max_queued=0)
    plan, plans = insert._plan, list[int]()

    def count(entries: Any, refused: Any) -> Any:
        plans.append(len(refused))
        return plan(entries, refused)

    monkeypatch.setattr(insert, "_plan", count)
    jobs = [JOB | {"idempotency_key": "a"}] * 20
    content = acme.client.post(URL, {"jobs": jobs}, format="json").json()["jobs"]
    assert {item["code"] for item in content} == {"tenant_queue_full"}
    assert plans == [0, 20]


@pytest.mark.parametrize(("of_tenant", "more"), [
    ({"max_queued": 0}, {}), ({}, {"model": "full"}), ({}, {"if_busy": "reject"}),
])  # fmt: skip
def test_a_thousand_refusals_need_few_reads(
    acme: Account, zimg: ModelConfig, of_tenant: dict[str, Any], more: dict[str, Any]
) -> None:
    make_model("full", max_queued=0)
    make_server(model=zimg)
    limit(acme, **of_tenant)
    reads = []
    for count in (2, 40):
        with CaptureQueriesContext(connection) as queries:
            content = acme.client.post(URL, {"jobs": [JOB | more] * count}, format="json").json()["jobs"]
        assert all(item["retryable"] for item in content)
        reads.append(sum("rollup" in one["sql"] for one in queries.captured_queries))
    assert reads == [1, 1]


def test_a_model_removed_after_its_check_fails_only_its_own_jobs(
    acme: Account, zimg: ModelConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_model("temporary")
    store = submission.store

    def store_once_it_is_gone(entries: Any) -> Any:
        ModelConfig.objects.filter(name="temporary").delete()
        return store(entries)

    monkeypatch.setattr(submission, "store", store_once_it_is_gone)
    content = acme.client.post(URL, {"jobs": [JOB | {"model": "temporary"}, JOB]}, format="json").json()[
        "jobs"
    ]
    assert [item.get("code") for item in content] == ["unknown_model", None]
    assert content[0]["errors"][0]["pointer"] == "/jobs/0/model"
    assert Job.objects.get().model == "zimg"
