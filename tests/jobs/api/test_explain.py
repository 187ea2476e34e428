"""Why a job waits, over HTTP: reasons, a forecast, and nothing about other tenants."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest

from jobs.models import Job
from tests.support.factories import make_model, make_running, make_server

from .test_limits import limit, used

pytestmark = pytest.mark.sqlite_only

URL = "/api/v1/queue"


def submit(account, **values):
    answer = account.client.post(f"{URL}/submit", {"model": "zimg", "payload": {}, **values}, format="json")
    assert answer.status_code == 202, answer.content
    return answer.json()["job_id"]


@pytest.fixture
def model(db):
    made = make_model("zimg")
    make_server("secret-server", model=made, slots=2)
    return made


def test_a_waiting_job_is_told_why_and_until_when(acme, model) -> None:
    submit(acme)
    job_id = submit(acme)
    found = acme.client.get(f"{URL}/jobs/{job_id}/explain").json()
    assert [reason["code"] for reason in found["reasons"]] == ["behind", "all_busy"]
    assert set(found["reasons"][0]) == {"code", "message", "change", "evidence"}
    assert found["reasons"][0]["evidence"]["jobs_ahead"] == 1
    assert (found["job_id"], found["status"], found["position"]) == (job_id, "queued", 2)
    assert 0 < found["starts_in"]["p50_seconds"] < found["starts_in"]["p90_seconds"]


def test_a_job_that_runs_or_is_over_gets_a_plain_answer(acme, model) -> None:
    job_id = submit(acme)
    make_running(Job.objects.get(id=job_id), slot="gpu-7/1")
    found = acme.client.get(f"{URL}/jobs/{job_id}/explain").json()
    assert [reason["code"] for reason in found["reasons"]] == ["running"]
    assert found["reasons"][0]["evidence"]["server"] == "gpu-7"
    assert (found["starts_in"], found["position"]) == (None, None)
    cancelled = submit(acme)
    acme.client.post(f"{URL}/jobs/{cancelled}/cancel")
    found = acme.client.get(f"{URL}/jobs/{cancelled}/explain").json()
    assert found["reasons"][0]["code"] == "finished"


def test_a_job_for_later_waits_since_its_time(acme, model, world) -> None:
    job_id = submit(acme)
    now = world.clock.now()
    at = {"created_at": now - timedelta(days=1), "run_at": now - timedelta(seconds=5)}
    Job.objects.filter(id=job_id).update(**at)
    world.leases.line.clear()
    found = acme.client.get(f"{URL}/jobs/{job_id}/explain").json()["reasons"]
    told = next(reason for reason in found if reason["code"] == "not_in_line")
    assert 5 <= told["evidence"]["waited_seconds"] < 60


def test_another_tenant_s_job_does_not_exist(acme, other, model) -> None:
    job_id = submit(acme)
    answer = other.client.get(f"{URL}/jobs/{job_id}/explain")
    assert (answer.status_code, answer.json()["code"]) == (404, "unknown_job")


def test_others_are_a_number_and_no_names(acme, other, operator, model) -> None:
    for _ in range(3):
        submit(other, tags=["theirs"])
    job_id = submit(acme)
    told = json.dumps(acme.client.get(f"{URL}/jobs/{job_id}/explain").json())
    assert '"jobs_ahead": 3' in told
    for name in (other.tenant.name, "theirs", "secret-server"):
        assert name not in told
    assert operator.client.get(f"{URL}/jobs/{job_id}/explain").status_code == 200


def test_while_redis_is_away_it_says_so(acme, model, world) -> None:
    job_id = submit(acme)
    world.leases.away = True
    found = acme.client.get(f"{URL}/jobs/{job_id}/explain").json()
    assert found["reasons"][0]["code"] == "index_away"
    assert found["starts_in"] is None


def test_an_estimate_stores_nothing(acme, model) -> None:
    submit(acme)
    answer = acme.client.post(f"{URL}/estimate", {"model": "zimg", "payload": {"a": 1}}, format="json")
    assert answer.status_code == 200
    found = answer.json()
    assert set(found) == {"reasons", "position", "starts_in"}
    assert [reason["code"] for reason in found["reasons"]] == ["behind", "all_busy"]
    assert Job.objects.count() == 1


def estimate(account):
    answer = account.client.post(f"{URL}/estimate", {"model": "zimg", "payload": {}}, format="json")
    assert answer.status_code == 200, answer.content
    return answer.json()


def refused(account, found, problem):
    """A submit is refused with what the estimate said first, at the same time."""
    first = found["reasons"][0]
    assert first["evidence"]["refused_with"] == problem
    assert (found["position"], found["starts_in"]) == (None, None), "it would not stand in line"
    answer = account.client.post(f"{URL}/submit", {"model": "zimg", "payload": {}}, format="json")
    told = answer.json()
    assert (answer.status_code, told["code"], told["detail"]) == (429, problem, first["message"])
    assert told["retry_after_seconds"] == pytest.approx(first["evidence"]["retry_after_seconds"], abs=1.0)
    return first


def test_an_estimate_costs_a_token_and_says_what_is_left(acme, model) -> None:
    limit(acme, submits_per_second=0.5, submit_burst=2)
    assert estimate(acme)["reasons"][0]["code"] == "all_busy"
    first = estimate(acme)["reasons"][0]
    assert (first["code"], first["evidence"]["retry_after_seconds"]) == ("rate", 2.0)
    refused(acme, {"reasons": [first], "position": None, "starts_in": None}, "rate_limited")


def test_an_estimate_of_a_full_queue_says_so(acme, model) -> None:
    limit(acme, max_queued=1)
    assert estimate(acme)["reasons"][0]["code"] == "all_busy"
    submit(acme)
    assert refused(acme, estimate(acme), "tenant_queue_full")["code"] == "queue_full"
    limit(acme, max_queued=None)
    model.max_queued = 1
    model.save()
    assert refused(acme, estimate(acme), "model_queue_full")["code"] == "queue_full"


def test_an_estimate_of_a_used_up_day_says_so_once(acme, model, world) -> None:
    limit(acme, daily_gpu_seconds=100.0)
    used(acme, world.clock.now(), 150.0)
    found = estimate(acme)
    first = refused(acme, found, "quota_exhausted")
    assert (first["code"], first["evidence"]["used_gpu_seconds"]) == ("quota", 150.0)
    assert first["evidence"]["limit_gpu_seconds"] == 100.0
    assert [reason["code"] for reason in found["reasons"]].count("quota") == 1


def test_while_redis_is_away_no_rate_is_known(acme, model, world) -> None:
    limit(acme, submits_per_second=0.001, submit_burst=1)
    submit(acme)
    world.leases.away = True
    assert [reason["code"] for reason in estimate(acme)["reasons"]] == ["index_away"]


def test_an_estimate_refuses_what_a_submit_refuses(acme, model) -> None:
    for body, status, code in (
        ({"model": "nobody", "payload": {}}, 422, "unknown_model"),
        ({"model": "zimg"}, 422, "validation_failed"),
        ({"model": "zimg", "payload": {}, "priority": 77}, 422, "validation_failed"),
    ):
        answer = acme.client.post(f"{URL}/estimate", body, format="json")
        assert (answer.status_code, answer.json()["code"]) == (status, code), body


def test_what_nobody_asked_for_is_refused(acme, model) -> None:
    job_id = submit(acme)
    answer = acme.client.get(f"{URL}/jobs/{job_id}/explain?why=1")
    assert (answer.status_code, answer.json()["code"]) == (400, "unknown_parameter")
