from __future__ import annotations

from typing import Any

import pytest

from jobs.models import Job
from jobs.operations.bulk import retry_jobs
from tests.support.api_harness import Account, ApiHarness
from tests.support.api_jobs import ids, make_job
from tests.support.problems import problem

URL = "/api/v1/admin/dlq"


@pytest.mark.database
def test_failed_jobs_of_all_tenants_are_listed_and_filtered(
    acme: Account, other: Account, operator: Account
) -> None:
    one = make_job(acme.tenant, "failed", error_code="timeout")
    two = make_job(other.tenant, "failed", error_code="poison", model="flux")
    make_job(acme.tenant, "completed")
    assert ids(operator.client.get(URL)) == [two.id, one.id]
    assert ids(operator.client.get(URL, {"error_code": "timeout"})) == [one.id]
    assert ids(operator.client.get(URL, {"model": "flux"})) == [two.id]
    assert operator.client.get(f"{URL}/{two.id}").json()["error"]["code"] == "poison"
    problem(operator.client.get(URL, {"status": "failed"}), 400, "unknown_parameter", "/status")


@pytest.mark.database
def test_client_errors_are_listed_and_retried_only_on_request(acme: Account, operator: Account) -> None:
    letter = make_job(acme.tenant, "failed", error_code="timeout")
    client = make_job(acme.tenant, "failed", error_code="bad_input", error_fingerprint="f" * 16)
    assert ids(operator.client.get(URL)) == [letter.id]
    assert ids(operator.client.get(URL, {"client_errors": "false"})) == [letter.id]
    assert ids(operator.client.get(URL, {"client_errors": "true"})) == [client.id]
    assert ids(operator.client.get(URL, {"error_code": "bad_input"})) == [client.id]
    groups = operator.client.get(f"{URL}/groups", {"client_errors": "true"}).json()["results"]
    assert [group["job_id"] for group in groups] == [client.id]
    problem(operator.client.get(URL, {"client_errors": "1"}), 400, "invalid_parameter", "/client_errors")
    assert operator.client.post(f"{URL}/retry-all").json()["retried"] == 1
    assert Job.objects.get(id=client.id).state == "failed"
    body = {"filter": {"client_errors": True}}
    assert operator.client.post("/api/v1/admin/jobs/retry", body, format="json").json()["done"] == 1
    assert Job.objects.get(id=client.id).state == "queued"


def test_a_dead_letter_is_retried(acme: Account, operator: Account, api: ApiHarness) -> None:
    job = make_job(acme.tenant, "failed", error_code="timeout")
    answer = operator.client.post(f"{URL}/{job.id}/retry")
    assert (answer.status_code, answer.json()["status"]) == (200, "queued")
    assert [ticket.job_id for ticket in api.leases.line] == [job.id]
    problem(operator.client.post(f"{URL}/{job.id}/retry"), 409, "not_a_dead_letter")
    problem(operator.client.post(f"{URL}/{'0' * 26}/retry"), 404, "unknown_job")


@pytest.mark.database
def test_all_matching_dead_letters_are_retried(acme: Account, operator: Account) -> None:
    for code in ("timeout", "timeout", "poison"):
        make_job(acme.tenant, "failed", error_code=code)
    answer = operator.client.post(f"{URL}/retry-all?error_code=timeout")
    assert (answer.status_code, answer.json()) == (200, {"retried": 2, "remaining": 0, "dry_run": False})
    assert Job.objects.filter(state="failed").count() == 1


@pytest.mark.database
def test_the_filter_of_a_retry_can_be_in_the_body(acme: Account, other: Account, operator: Account) -> None:
    mine, foreign = make_job(acme.tenant, "failed"), make_job(other.tenant, "failed", model="flux")
    url = f"{URL}/retry-all"
    dry = operator.client.post(url, {"model": "flux", "dry_run": True}, format="json")
    assert dry.json() == {"retried": 0, "remaining": 1, "dry_run": True}
    both = operator.client.post(f"{url}?tenant=acme", {"model": "flux"}, format="json")
    assert both.json()["retried"] == 0, "no job is of this tenant and of this model"
    assert operator.client.post(url, {"model": "flux"}, format="json").json()["retried"] == 1
    assert [Job.objects.get(id=job.id).state for job in (mine, foreign)] == ["failed", "queued"]


@pytest.mark.parametrize(("body", "query", "pointer"), [
    ({"modle": "flux"}, "", "/modle"), ({"dry_run": "yes"}, "", "/dry_run"), ([], "", ""),
    ({"fingerprint": "x"}, "", "/fingerprint"), ({"model": "flux"}, "?model=zimg", "/model"),
])  # fmt: skip
def test_an_invalid_body_retries_no_job(
    acme: Account, operator: Account, body: Any, query: str, pointer: str
) -> None:
    job = make_job(acme.tenant, "failed")
    answer = operator.client.post(f"{URL}/retry-all{query}", body, format="json")
    problem(answer, 422, "validation_failed", pointer)
    assert Job.objects.get(id=job.id).state == "failed"


@pytest.mark.parametrize(("method", "path"), [("get", ""), ("get", "/groups"), ("post", "/retry-all")])
def test_an_unknown_tenant_in_a_filter_is_refused(operator: Account, method: str, path: str) -> None:
    answer = getattr(operator.client, method)(f"{URL}{path}?tenant=nobody")
    problem(answer, 400, "unknown_tenant", "/tenant")
    if method == "post":
        answer = operator.client.post(URL + path, {"tenant": "nobody"}, format="json")
        problem(answer, 422, "unknown_tenant", "/tenant")


def test_a_request_retries_a_bounded_number_of_jobs(
    acme: Account, operator: Account, api: ApiHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(3):
        make_job(acme.tenant, "failed", error_code="timeout")
    monkeypatch.setattr(retry_jobs, "__kwdefaults__", {"at_most": 2})
    answers = [operator.client.post(f"{URL}/retry-all").json() for _ in range(2)]
    assert [(one["retried"], one["remaining"]) for one in answers] == [(2, 1), (1, 0)]
    assert len(api.leases.line) == 3


@pytest.mark.database
def test_a_dead_letter_is_dismissed_for_good(acme: Account, operator: Account) -> None:
    job = make_job(acme.tenant, "failed")
    assert operator.client.delete(f"{URL}/{job.id}").status_code == 204
    assert ids(operator.client.get(URL)) == []
    problem(operator.client.delete(f"{URL}/{job.id}"), 409, "not_a_dead_letter")
    problem(operator.client.post(f"{URL}/{job.id}/retry"), 409, "not_a_dead_letter")
    assert acme.client.get(f"/api/v1/queue/jobs/{job.id}").json()["status"] == "failed"
