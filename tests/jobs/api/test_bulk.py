"""Bulk operations and the groups of dead letters, over HTTP."""

from __future__ import annotations

from typing import Any

import pytest

from gpus.models import AuditEntry
from jobs.domain.failure_fingerprints import fingerprint_of
from jobs.models import Job
from tests.support.api_harness import Account, ApiHarness
from tests.support.api_jobs import make_job
from tests.support.problems import problem

CANCEL, RETRY = "/api/v1/admin/jobs/cancel", "/api/v1/admin/jobs/retry"
DISMISS, GROUPS = "/api/v1/admin/dlq/dismiss", "/api/v1/admin/dlq/groups"


def failed(account: Account, message: str = "Waited 1 s", **values: Any) -> Job:
    job: Job = make_job(account.tenant, "failed", error_code="timeout", error_message=message, **values)
    job.error_fingerprint = fingerprint_of("timeout", message)
    job.save()
    return job


@pytest.mark.database
def test_a_dry_run_only_counts(acme: Account, operator: Account) -> None:
    job, letter = make_job(acme.tenant, "queued"), failed(acme)
    for url, expected in {CANCEL: 1, RETRY: 1, DISMISS: 1}.items():
        answer = operator.client.post(url, {"filter": {"tenant": "acme"}, "dry_run": True}, format="json")
        assert answer.json() == {"done": 0, "remaining": expected, "refused": 0, "dry_run": True}
    assert {Job.objects.get(id=one.id).state for one in (job, letter)} == {"queued", "failed"}
    assert not AuditEntry.objects.exists()


@pytest.mark.database
def test_matching_jobs_are_cancelled(
    acme: Account, other: Account, operator: Account, api: ApiHarness
) -> None:
    mine, foreign = make_job(acme.tenant, "queued"), make_job(other.tenant, "queued")
    answer = operator.client.post(CANCEL, {"filter": {"tenant": "acme"}}, format="json")
    assert (answer.status_code, answer.json()["done"]) == (200, 1)
    assert [Job.objects.get(id=job.id).state for job in (mine, foreign)] == ["cancelled", "queued"]
    assert AuditEntry.objects.get().actor.startswith("key:")


@pytest.mark.database
def test_a_group_is_retried_and_another_one_dismissed(
    acme: Account, operator: Account, api: ApiHarness
) -> None:
    again, away = failed(acme, "Waited 5 s"), failed(acme, "No prompt")
    groups = operator.client.get(GROUPS).json()["results"]
    assert {group["fingerprint"] for group in groups} == {again.error_fingerprint, away.error_fingerprint}
    body = {"filter": {"fingerprint": again.error_fingerprint, "state": "failed"}}
    assert operator.client.post(RETRY, body, format="json").json()["done"] == 1
    assert [ticket.job_id for ticket in api.leases.line] == [again.id]
    body = {"filter": {"fingerprint": away.error_fingerprint}}
    assert operator.client.post(DISMISS, body, format="json").json()["done"] == 1
    assert operator.client.get(GROUPS).json() == {"results": []}


@pytest.mark.database
def test_a_group_describes_its_failures(acme: Account, operator: Account) -> None:
    failed(acme, "Waited 5 s")
    newest = failed(acme, "Waited 6 s", model="flux")
    (group,) = operator.client.get(GROUPS, {"error_code": "timeout"}).json()["results"]
    assert (group["count"], group["models"]) == (2, {"flux": 1, "zimg": 1})
    assert group["error"]["code"] == "timeout"
    assert group["first_at"] <= group["last_at"]
    assert newest.error_fingerprint == group["fingerprint"]
    assert operator.client.get(GROUPS, {"model": "none"}).json() == {"results": []}


@pytest.mark.database
def test_retry_all_counts_first_and_takes_a_fingerprint(acme: Account, operator: Account) -> None:
    one, other_kind = failed(acme), failed(acme, "No prompt")
    url = f"/api/v1/admin/dlq/retry-all?fingerprint={one.error_fingerprint}"
    dry = operator.client.post(f"{url}&dry_run=true")
    assert dry.json() == {"retried": 0, "remaining": 1, "dry_run": True}
    assert operator.client.post(url).json()["retried"] == 1
    assert Job.objects.get(id=other_kind.id).state == "failed"
    problem(operator.client.post(f"{url}&dry_run=yes"), 400, "invalid_parameter", "/dry_run")


@pytest.mark.parametrize(
    ("body", "code", "pointer"),
    [
        ({}, "required", "/filter"),
        ({"filter": {}}, "invalid", "/filter"),
        ({"filter": {"modle": "x"}}, "unknown_field", "/filter/modle"),
        ({"filter": {"state": "lost"}}, "not_a_choice", "/filter/state"),
        ({"filter": {"fingerprint": "xyz"}}, "invalid", "/filter/fingerprint"),
        ({"filter": {"created_after": "yesterday"}}, "invalid", "/filter/created_after"),
        ({"filter": {"created_before": "2026-01-01T00:00:00"}}, "invalid", "/filter/created_before"),
        ({"filter": {"model": "m"}, "dry_run": 1}, "wrong_type", "/dry_run"),
    ],
)
def test_a_wrong_filter_is_refused(
    acme: Account, operator: Account, body: dict[str, Any], code: str, pointer: str
) -> None:
    job = make_job(acme.tenant, "queued")
    answer = operator.client.post(CANCEL, body, format="json")
    problem(answer, 422, "validation_failed", pointer)
    assert answer.json()["errors"][0]["code"] == code
    assert Job.objects.get(id=job.id).state == "queued"


@pytest.mark.parametrize("url", [CANCEL, RETRY, DISMISS])
@pytest.mark.parametrize("dry_run", [True, False])
def test_an_unknown_tenant_in_a_filter_is_refused(operator: Account, url: str, dry_run: bool) -> None:
    body = {"filter": {"tenant": "nobody"}, "dry_run": dry_run}
    problem(operator.client.post(url, body, format="json"), 422, "unknown_tenant", "/filter/tenant")
