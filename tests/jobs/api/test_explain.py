"""Explanations over HTTP: reasons, an estimate, and no details of other tenants."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest

from jobs.models import Job
from tests.support.factories import make_model, make_running, make_server
from tests.support.limits import limit, used

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


def test_the_explanation_of_a_waiting_job_has_reasons_and_an_estimate(acme, model) -> None:
    submit(acme)
    job_id = submit(acme)
    found = acme.client.get(f"{URL}/jobs/{job_id}/explain").json()
    assert [reason["code"] for reason in found["reasons"]] == ["behind", "all_busy"]
    assert set(found["reasons"][0]) == {"code", "message", "change", "evidence"}
    assert found["reasons"][0]["evidence"]["jobs_ahead"] == 1
    assert (found["job_id"], found["status"], found["position"]) == (job_id, "queued", 2)
    assert 0 < found["starts_in"]["p50_seconds"] < found["starts_in"]["p90_seconds"]


def test_a_running_or_ended_job_gets_one_reason(acme, model) -> None:
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


def test_a_scheduled_job_waits_since_its_run_at(acme, model, api) -> None:
    job_id = submit(acme)
    now = api.clock.now()
    at = {"created_at": now - timedelta(days=1), "run_at": now - timedelta(seconds=5)}
    Job.objects.filter(id=job_id).update(**at)
    api.leases.line.clear()
    found = acme.client.get(f"{URL}/jobs/{job_id}/explain").json()["reasons"]
    result = next(reason for reason in found if reason["code"] == "not_in_line")
    assert 5 <= result["evidence"]["waited_seconds"] < 60


def test_a_job_of_another_tenant_is_not_explained(acme, other, model) -> None:
    job_id = submit(acme)
    answer = other.client.get(f"{URL}/jobs/{job_id}/explain")
    assert (answer.status_code, answer.json()["code"]) == (404, "unknown_job")


def test_other_tenants_appear_only_as_a_number(acme, other, operator, model) -> None:
    for _ in range(3):
        submit(other, tags=["theirs"])
    job_id = submit(acme)
    content = json.dumps(acme.client.get(f"{URL}/jobs/{job_id}/explain").json())
    assert '"jobs_ahead": 3' in content
    for name in (other.tenant.name, "theirs", "secret-server"):
        assert name not in content
    assert operator.client.get(f"{URL}/jobs/{job_id}/explain").status_code == 200


def test_without_redis_the_error_says_so(acme, model, api) -> None:
    job_id = submit(acme)
    api.leases.away = True
    found = acme.client.get(f"{URL}/jobs/{job_id}/explain").json()
    assert found["reasons"][0]["code"] == "index_away"
    assert found["starts_in"] is None


def test_an_estimate_stores_no_job(acme, model) -> None:
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
    """A submit gets the error that the estimate named first."""
    first = found["reasons"][0]
    assert first["evidence"]["refused_with"] == problem
    assert (found["position"], found["starts_in"]) == (None, None), "it would not be queued"
    answer = account.client.post(f"{URL}/submit", {"model": "zimg", "payload": {}}, format="json")
    content = answer.json()
    assert (answer.status_code, content["code"], content["detail"]) == (429, problem, first["message"])
    assert content["retry_after_seconds"] == pytest.approx(first["evidence"]["retry_after_seconds"], abs=1.0)
    return first


def test_an_estimate_costs_a_token_and_returns_the_rest(acme, model) -> None:
    limit(acme, submits_per_second=0.5, submit_burst=2)
    assert estimate(acme)["reasons"][0]["code"] == "all_busy"
    first = estimate(acme)["reasons"][0]
    assert (first["code"], first["evidence"]["retry_after_seconds"]) == ("rate", 2.0)
    refused(acme, {"reasons": [first], "position": None, "starts_in": None}, "rate_limited")


def test_an_estimate_names_a_full_queue(acme, model) -> None:
    limit(acme, max_queued=1)
    assert estimate(acme)["reasons"][0]["code"] == "all_busy"
    submit(acme)
    assert refused(acme, estimate(acme), "tenant_queue_full")["code"] == "queue_full"
    limit(acme, max_queued=None)
    model.max_queued = 1
    model.save()
    assert refused(acme, estimate(acme), "model_queue_full")["code"] == "queue_full"


def test_an_estimate_names_an_exhausted_day_once(acme, model, api) -> None:
    limit(acme, daily_gpu_seconds=100.0)
    used(acme, api.clock.now(), 150.0)
    found = estimate(acme)
    first = refused(acme, found, "quota_exhausted")
    assert (first["code"], first["evidence"]["used_gpu_seconds"]) == ("quota", 150.0)
    assert first["evidence"]["limit_gpu_seconds"] == 100.0
    assert [reason["code"] for reason in found["reasons"]].count("quota") == 1


def test_without_redis_an_estimate_has_no_rate(acme, model, api) -> None:
    limit(acme, submits_per_second=0.001, submit_burst=1)
    submit(acme)
    api.leases.away = True
    assert [reason["code"] for reason in estimate(acme)["reasons"]] == ["index_away"]


def test_an_estimate_refuses_what_a_submit_refuses(acme, model) -> None:
    for body, status, code in (
        ({"model": "nobody", "payload": {}}, 422, "unknown_model"),
        ({"model": "zimg"}, 422, "validation_failed"),
        ({"model": "zimg", "payload": {}, "priority": 77}, 422, "validation_failed"),
    ):
        answer = acme.client.post(f"{URL}/estimate", body, format="json")
        assert (answer.status_code, answer.json()["code"]) == (status, code), body


def test_unknown_parameters_are_refused(acme, model) -> None:
    job_id = submit(acme)
    answer = acme.client.get(f"{URL}/jobs/{job_id}/explain?why=1")
    assert (answer.status_code, answer.json()["code"]) == (400, "unknown_parameter")
