from __future__ import annotations

from typing import Any

import pytest

from gpus.models import ModelConfig
from jobs.models import Event, IdempotencyKey, Job, JobTag
from tests.support.api_harness import Account, ApiHarness, make_model
from tests.support.factories import make_server
from tests.support.fakes import ManualClock
from tests.support.servers.handlers import QuietHandler, serve_handler

URL = "/api/v1/queue/submit"
JOB = {"model": "zimg", "payload": {"prompt": "a sunset"}}


def test_a_submit_is_durable_before_it_is_accepted_and_has_a_location(
    acme: Account, zimg: ModelConfig, api: ApiHarness
) -> None:
    body = JOB | {"priority": True, "tags": ["a", "b", "a"], "metadata": {"order": 7}, "deadline_seconds": 60}
    answer = acme.client.post(URL, body, format="json")
    assert answer.status_code == 202, answer.content
    content = answer.json()
    job = Job.objects.get(id=content["job_id"])
    assert answer["Location"] == f"/api/v1/queue/jobs/{job.id}" == content["urls"]["self"]
    assert content["urls"]["logs"] == f"{answer['Location']}/logs"
    assert (content["status"], content["outcome"], content["position"]) == ("queued", "queued", 1)
    assert (job.tenant, job.priority, job.payload, job.pool) == (
        acme.tenant,
        2,
        {"prompt": "a sunset"},
        "zimg",
    )
    assert content["tags"] == ["a", "b"]
    assert set(JobTag.objects.values_list("tag", flat=True)) == {"a", "b"}
    assert job.deadline_at is not None
    assert (job.deadline_at - job.created_at).total_seconds() == 60
    assert list(Event.objects.values_list("seq", "type")) == [(1, "queued")]
    assert [ticket.job_id for ticket in api.leases.line] == [job.id]
    assert len(api.wakes) == 1


def test_a_free_slot_without_jobs_ahead_starts_at_once(
    acme: Account, zimg: ModelConfig, api: ApiHarness
) -> None:
    make_server(model=zimg)
    api.leases.free_slots = 1
    first, second = (acme.client.post(URL, JOB, format="json").json() for _ in range(2))
    assert (first["outcome"], first["position"], first["starts_in"]) == ("leased", None, None)
    assert (second["outcome"], second["position"]) == ("queued", 2)
    assert second["starts_in"] == {"p50_seconds": 4.0, "p90_seconds": 8.0, "seen": 0}


def test_without_redis_a_job_is_accepted(acme: Account, zimg: ModelConfig, api: ApiHarness) -> None:
    api.leases.away = True
    answer = acme.client.post(URL, JOB, format="json")
    assert answer.status_code == 202
    content = answer.json()
    assert (content["outcome"], content["position"], content["starts_in"]) == ("queued", None, None)
    assert Job.objects.count() == 1


def test_a_committed_job_is_accepted_whatever_fails_later(
    acme: Account, zimg: ModelConfig, api: ApiHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api.leases, "push", lambda *_: {}["a defect of ours"])
    assert acme.client.post(URL, JOB, format="json").status_code == 202
    assert Job.objects.count() == 1


def test_a_repeated_request_finds_the_same_job(acme: Account, zimg: ModelConfig, api: ApiHarness) -> None:
    first = acme.client.post(URL, JOB, format="json", HTTP_IDEMPOTENCY_KEY="k1")
    api.leases.line.clear()
    again = acme.client.post(
        URL, {"payload": JOB["payload"], "model": "zimg"}, format="json", HTTP_IDEMPOTENCY_KEY="k1"
    )
    assert "Idempotency-Replayed" not in first
    assert (again.status_code, again["Idempotency-Replayed"]) == (202, "true")
    assert again.json()["job_id"] == first.json()["job_id"]
    assert Job.objects.count() == 1
    assert len(api.leases.line) == 1, "a lost ticket is pushed again"


def test_a_repeated_request_returns_an_ended_job(acme: Account, zimg: ModelConfig) -> None:
    first = acme.client.post(URL, JOB, format="json", HTTP_IDEMPOTENCY_KEY="k1").json()
    Job.objects.update(state="completed", finished_at="2026-02-01T00:00:00Z", result={"url": "x"})
    again = acme.client.post(URL, JOB, format="json", HTTP_IDEMPOTENCY_KEY="k1")
    assert again.status_code == 200
    content = again.json()
    assert (content["job_id"], content["outcome"], content["result"]) == (
        first["job_id"],
        "finished",
        {"url": "x"},
    )


def test_a_key_with_another_body_is_a_conflict(acme: Account, zimg: ModelConfig) -> None:
    acme.client.post(URL, JOB, format="json", HTTP_IDEMPOTENCY_KEY="k1")
    answer = acme.client.post(URL, JOB | {"priority": 1}, format="json", HTTP_IDEMPOTENCY_KEY="k1")
    assert (answer.status_code, answer.json()["code"]) == (422, "idempotency_conflict")
    assert Job.objects.count() == 1


def test_idempotency_keys_belong_to_a_tenant(acme: Account, other: Account, zimg: ModelConfig) -> None:
    mine = acme.client.post(URL, JOB, format="json", HTTP_IDEMPOTENCY_KEY="k1").json()
    theirs = other.client.post(URL, JOB | {"priority": 1}, format="json", HTTP_IDEMPOTENCY_KEY="k1")
    assert theirs.status_code == 202
    assert theirs.json()["job_id"] != mine["job_id"]


def test_a_refusal_is_not_stored_under_its_key(acme: Account) -> None:
    refused = acme.client.post(URL, JOB, format="json", HTTP_IDEMPOTENCY_KEY="k1")
    assert refused.json()["code"] == "unknown_model"
    assert "`GET /api/v1/me` lists the models" in refused.json()["detail"]
    make_model("zimg")
    assert acme.client.post(URL, JOB, format="json", HTTP_IDEMPOTENCY_KEY="k1").status_code == 202
    assert IdempotencyKey.objects.count() == 1


def test_the_models_own_schema_is_checked(acme: Account) -> None:
    make_model("flux", payload_schema={"properties": {"steps": {"type": "integer"}}, "required": ["steps"]})
    wrong = acme.client.post(URL, {"model": "flux", "payload": {"steps": "many"}}, format="json")
    assert (wrong.status_code, wrong.json()["code"]) == (422, "payload_invalid")
    assert wrong.json()["errors"][0]["pointer"] == "/payload/steps"
    assert wrong.json()["detail"] == '/payload/steps: The value is not of type "integer"'
    right = acme.client.post(URL, {"model": "flux", "payload": {"steps": 4}}, format="json")
    assert right.status_code == 202


@pytest.mark.database
def test_a_remote_reference_in_a_schema_is_not_followed(acme: Account) -> None:
    calls: list[str] = []

    class Elsewhere(QuietHandler):
        def do_GET(self) -> None:
            calls.append(self.path)
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"{}")

    with serve_handler(Elsewhere) as url:
        make_model("flux", payload_schema={"$ref": f"{url}/schema.json"})
        answer = acme.client.post(URL, {"model": "flux", "payload": {}}, format="json")
    assert (answer.status_code, answer.json()["code"]) == (503, "model_schema_unusable")
    assert answer["Retry-After"] == "60"
    assert calls == []


@pytest.mark.parametrize("priority", [3, 3.0])
def test_integers_and_floats_of_equal_value_are_equal(
    acme: Account, zimg: ModelConfig, priority: float
) -> None:
    assert acme.client.post(URL, JOB | {"priority": priority}, format="json").status_code == 202
    assert Job.objects.get().priority == 3


@pytest.mark.usefixtures("all_remembered")
def test_a_single_submit_costs_few_queries(
    acme: Account, zimg: ModelConfig, django_assert_max_num_queries: object
) -> None:
    acme.client.post(URL, JOB, format="json")
    with django_assert_max_num_queries(4):  # type: ignore[operator]  # savepoint, job, event, release
        acme.client.post(URL, JOB, format="json")


@pytest.fixture
def slow_redis(api: ApiHarness, monkeypatch: pytest.MonkeyPatch) -> ManualClock:
    """Each push takes two seconds by this clock."""
    api.clock = clock = ManualClock()
    push = api.leases.push

    def slow_push(pool: str, tickets: Any) -> Any:
        clock.move(2)
        return push(pool, tickets)

    monkeypatch.setattr(api.leases, "push", slow_push)
    return clock


def test_a_hung_redis_is_bypassed_for_a_while(
    acme: Account, zimg: ModelConfig, api: ApiHarness, slow_redis: ManualClock
) -> None:
    api.leases.away = True
    assert acme.client.post(URL, JOB, format="json").status_code == 202
    api.leases.away = False
    assert acme.client.post(URL, JOB, format="json").json()["position"] is None
    assert api.leases.line == [], "Redis was not called"
    slow_redis.move(3)
    assert acme.client.post(URL, JOB, format="json").json()["position"] == 1


def test_a_slow_redis_is_called_once_and_no_wakes_are_sent(
    acme: Account, zimg: ModelConfig, api: ApiHarness, slow_redis: ManualClock
) -> None:
    make_model("flux")
    jobs = [JOB, JOB | {"model": "flux"}]
    answer = acme.client.post("/api/v1/queue/submit-batch", {"jobs": jobs}, format="json")
    assert [job["position"] for job in answer.json()["jobs"]] == [1, None]
    assert len(api.leases.line) == 1
    assert api.wakes == []
