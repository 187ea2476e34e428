"""`run_at`, deadlines, and run limits of jobs."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from gpus.models import ModelConfig
from jobs.models import Event, Job
from tests.support.api_harness import Account, ApiHarness, make_model
from tests.support.fakes import ManualClock
from tests.support.problems import problem

SUBMIT = "/api/v1/queue/submit"
JOB = {"model": "zimg", "payload": {}}
NOON = datetime(2026, 3, 4, 12, tzinfo=UTC)


@pytest.fixture(autouse=True)
def noon(api: ApiHarness) -> ManualClock:
    api.clock = ManualClock(NOON)
    return api.clock


def submit(account: Account, **fields: Any) -> Any:
    return account.client.post(SUBMIT, JOB | fields, format="json")


def test_a_scheduled_job_is_durable_and_not_queued(acme: Account, zimg: ModelConfig, api: ApiHarness) -> None:
    later = NOON + timedelta(hours=2)
    answer = submit(acme, run_at="2026-03-04T16:00:00+02:00", deadline_seconds=60, start_deadline_seconds=5)
    assert answer.status_code == 202
    content = answer.json()
    assert (content["status"], content["outcome"], content["position"]) == ("scheduled", "scheduled", None)
    assert (content["wait_reason"], content["starts_in"]) == ("later_start", None)
    assert content["run_at"] == later.isoformat()
    assert (api.leases.line, api.wakes) == ([], [])
    job = Job.objects.get()
    assert (job.run_at, job.deadline_at) == (later, later + timedelta(seconds=60))
    assert job.start_deadline_at == later + timedelta(seconds=5), "deadlines count from `run_at`"
    assert job.place_us == int(later.timestamp() * 1_000_000)
    assert Event.objects.get().type == "scheduled"
    shown = acme.client.get("/api/v1/queue/jobs?status=scheduled").json()["results"]
    assert [one["job_id"] for one in shown] == [job.id]


def test_a_scheduled_job_can_be_cancelled(acme: Account, zimg: ModelConfig, api: ApiHarness) -> None:
    job_id = submit(acme, run_at="2026-03-05T00:00:00Z").json()["job_id"]
    assert acme.client.post(f"/api/v1/queue/jobs/{job_id}/cancel").status_code == 200
    assert acme.client.get(f"/api/v1/queue/jobs/{job_id}").json()["status"] == "cancelled"


@pytest.mark.parametrize("seconds_ago", [0, 1, 59])
def test_a_run_at_slightly_in_the_past_means_now(acme: Account, zimg: ModelConfig, seconds_ago: int) -> None:
    content = submit(acme, run_at=(NOON - timedelta(seconds=seconds_ago)).isoformat()).json()
    assert (content["status"], content["run_at"]) == ("queued", None)


@pytest.mark.parametrize(("fields", "code", "pointer"), [
    ({"run_at": "2026-03-04T11:58:00Z"}, "run_at_in_past", "/run_at"),
    ({"run_at": "1970-01-01T00:00:00Z"}, "run_at_in_past", "/run_at"),
    ({"run_at": "2126-03-04T12:00:00Z"}, "run_at_too_far", "/run_at"),
    ({"run_at": "2026-03-04T14:00:00"}, "validation_failed", "/run_at"),
    ({"run_at": "tomorrow"}, "validation_failed", "/run_at"),
    ({"run_at": "9999-99-99T00:00:00Z"}, "validation_failed", "/run_at"),
    ({"run_at": 1772625600}, "validation_failed", "/run_at"),
    ({"run_at": ""}, "validation_failed", "/run_at"),
    ({"deadline_seconds": 5, "start_deadline_seconds": 6}, "deadline_before_start_deadline",
     "/deadline_seconds"),
    ({"max_run_seconds": 0}, "validation_failed", "/max_run_seconds"),
    ({"max_run_seconds": 31}, "max_run_seconds_too_long", "/max_run_seconds"),
    ({"max_run_seconds": 0.99}, "max_run_seconds_too_short", "/max_run_seconds"),
    ({"max_retries": 51}, "max_retries_too_high", "/max_retries"),
    ({"if_busy": "perhaps"}, "validation_failed", "/if_busy"),
])  # fmt: skip
def test_contradictory_times_are_refused(
    acme: Account, fields: dict[str, Any], code: str, pointer: str
) -> None:
    make_model("zimg", max_run_seconds=30.0)
    content = problem(submit(acme, **fields), 422, code, pointer)
    assert not Job.objects.exists()
    if code.startswith("run_at"):
        assert "2026-03-04T12:00:00+00:00" in content["detail"], "the response shows the wrong clock"
    item = acme.client.post("/api/v1/queue/submit-batch", {"jobs": [JOB | fields]}, format="json").json()
    assert item["jobs"][0]["code"] == code


@pytest.mark.parametrize("fields", [
    {"deadline_seconds": 6, "start_deadline_seconds": 6}, {"max_run_seconds": 30}, {"max_run_seconds": 1},
    {"run_at": None},
    {"run_at": "2027-03-04T12:00:00Z"},
])  # fmt: skip
def test_times_at_their_limits_are_accepted(acme: Account, fields: dict[str, Any]) -> None:
    make_model("zimg", max_run_seconds=30.0)
    assert submit(acme, **fields).status_code == 202


@pytest.mark.parametrize(
    ("model", "setting", "least"),
    [
        ({}, 1.0, 1.0),
        ({"min_run_seconds": 5.0}, 1.0, 5.0),
        ({"min_run_seconds": 0.0}, 1.0, 0.0),
        ({}, 0.0, 0.0),
        ({"max_run_seconds": 0.5}, 1.0, 0.5),
    ],
)
def test_a_jobs_run_limit_has_a_minimum(
    acme: Account, settings: Any, model: dict[str, float], setting: float, least: float
) -> None:
    make_model("zimg", **model)
    settings.DISPATCHER = replace(settings.DISPATCHER, min_run_seconds=setting)
    assert submit(acme, max_run_seconds=max(least, 0.001)).status_code == 202
    if least:
        content = problem(submit(acme, max_run_seconds=least - 0.01), 422, "max_run_seconds_too_short")
        assert f"{least:g} s" in content["detail"], "the error names the value"


def test_a_repeated_submit_finds_its_job_after_run_at(
    acme: Account, zimg: ModelConfig, noon: ManualClock
) -> None:
    body = JOB | {"run_at": (NOON + timedelta(seconds=5)).isoformat()}

    def send(body: dict[str, Any]) -> Any:
        return acme.client.post(SUBMIT, body, format="json", HTTP_IDEMPOTENCY_KEY="k")

    first = send(body)
    assert first.status_code == 202
    noon.move(3600)
    again = send(body)
    assert again["Idempotency-Replayed"] == "true"
    assert again.json()["job_id"] == first.json()["job_id"]
    problem(send(body | {"priority": 9}), 422, "run_at_in_past")
    problem(send(JOB), 422, "idempotency_conflict")
    problem(acme.client.post(SUBMIT, body, format="json"), 422, "run_at_in_past")


def test_a_repeated_submit_finds_its_job_although_the_model_is_no_longer_allowed(
    acme: Account, zimg: ModelConfig
) -> None:
    first = acme.client.post(SUBMIT, JOB, format="json", HTTP_IDEMPOTENCY_KEY="k")
    acme.tenant.allowed_models = ["flux"]
    acme.tenant.save()
    again = acme.client.post(SUBMIT, JOB, format="json", HTTP_IDEMPOTENCY_KEY="k")
    assert again.json()["job_id"] == first.json()["job_id"]
    problem(acme.client.post(SUBMIT, JOB, format="json"), 403, "model_not_allowed")


def test_a_job_shows_its_queue_deadline(acme: Account, zimg: ModelConfig) -> None:
    zimg.max_queued_seconds = 600
    zimg.save()
    content = submit(acme, deadline_seconds=60).json()
    job = Job.objects.get(id=content["job_id"])
    assert job.queue_deadline_at == job.created_at + timedelta(seconds=600)
    assert content["queue_deadline_at"] == job.queue_deadline_at.isoformat()
    assert content["deadline_at"] == (job.created_at + timedelta(seconds=60)).isoformat()
    assert content["start_deadline_at"] is None


def test_the_default_longest_wait_is_a_day(acme: Account, zimg: ModelConfig) -> None:
    job = Job.objects.get(id=submit(acme).json()["job_id"])
    assert job.queue_deadline_at == job.created_at + timedelta(days=1)
