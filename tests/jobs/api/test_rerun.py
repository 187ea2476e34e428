"""POST /queue/jobs/{id}/rerun: a new job with the values of an earlier one, submitted like any other."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.utils import timezone
from rest_framework.test import APIClient

from gpus.models import AuditEntry, ModelConfig
from jobs import ports
from jobs.domain.states import JobState
from jobs.models import ApiKey, Job, Tenant
from jobs.operations.rerun import NOT_REPEATED, submitted_values
from jobs.submission.request import Submit
from tests.support.api_harness import Account, ApiHarness, forget_keys, key_client
from tests.support.problems import problem

SUBMIT = "/api/v1/queue/submit"
BODY = {
    "model": "zimg",
    "payload": {"prompt": "a fox", "steps": 20},
    "priority": 3,
    "tags": ["night"],
    "metadata": {"order": 7},
    "deadline_seconds": 600,
    "max_retries": 2,
}


def url(job_id: str) -> str:
    return f"/api/v1/queue/jobs/{job_id}/rerun"


@pytest.fixture
def first(acme: Account, zimg: ModelConfig) -> Job:
    """A job of acme that has completed."""
    job_id = acme.client.post(SUBMIT, BODY, format="json").json()["job_id"]
    job = Job.objects.get(id=job_id)
    Job.objects.filter(id=job_id).update(
        state=JobState.COMPLETED, finished_at=job.created_at, result={"url": "x"}, rerun_of=None
    )
    return Job.objects.get(id=job_id)


def with_scopes(account: Account, scopes: list[str]) -> APIClient:
    _, key = ApiKey.objects.create_key(tenant=account.tenant, name="narrow", scopes=scopes)
    return key_client(key)


def test_a_completed_job_runs_again_with_its_values(acme: Account, first: Job, api: ApiHarness) -> None:
    answer = acme.client.post(url(first.id))
    assert answer.status_code == 202, answer.content
    content = answer.json()
    job = Job.objects.get(id=content["job_id"])
    assert job.id != first.id
    assert (content["rerun_of"], content["status"]) == (first.id, "queued")
    assert answer["Location"] == content["urls"]["self"]
    same = ("payload", "priority", "tags", "metadata", "model", "max_retries", "tenant_id", "callback_url")
    assert [getattr(job, name) for name in same] == [getattr(first, name) for name in same]
    assert job.deadline_at is not None
    assert (job.deadline_at - job.created_at).total_seconds() == 600
    assert [ticket.job_id for ticket in api.leases.line] == [first.id, job.id]
    first.refresh_from_db()
    assert (first.state, first.result, first.round) == ("completed", {"url": "x"}, 1)
    assert not AuditEntry.objects.exists(), "a client's own job"


def test_every_field_of_a_submit_is_repeated_or_named_as_left_out(acme: Account, zimg: ModelConfig) -> None:
    body = {
        **BODY,
        "callback_url": "https://93.184.215.14/ended",
        "start_deadline_seconds": 300.0,
        "max_run_seconds": 60.0,
        "if_busy": "queue",
        "run_at": (timezone.now() + timedelta(hours=1)).isoformat(),
    }
    assert body.keys() == Submit.model_fields.keys()
    answer = acme.client.post(SUBMIT, body, format="json")
    assert answer.status_code == 202, answer.content
    repeated = {name: value for name, value in body.items() if name not in NOT_REPEATED}
    assert submitted_values(Job.objects.get(id=answer.json()["job_id"])) == repeated


def test_fields_of_the_body_replace_the_earlier_values(acme: Account, first: Job) -> None:
    changes = {"payload": {"prompt": "a wolf"}, "priority": 7, "tags": None, "deadline_seconds": None}
    content = acme.client.post(url(first.id), changes, format="json").json()
    job = Job.objects.get(id=content["job_id"])
    assert (job.payload, job.priority, job.tags) == ({"prompt": "a wolf"}, 7, [])
    assert (job.deadline_at, job.metadata) == (None, {"order": 7})


@pytest.mark.parametrize(
    ("changes", "pointer"),
    [
        ({"model": "flux"}, "/model"),
        ({"payload": "a fox"}, "/payload"),
        ({"payload": None}, "/payload"),
        ({"priority": 12}, "/priority"),
        ({"prompt": "a fox"}, "/prompt"),
        ({"max_retries": 99_999}, "/max_retries"),
        ([], ""),
    ],
)
def test_invalid_changes_are_refused_and_store_nothing(
    acme: Account, first: Job, changes: Any, pointer: str
) -> None:
    answer = acme.client.post(url(first.id), changes, format="json")
    assert answer.status_code == 422, answer.content
    assert answer.json()["errors"][0]["pointer"] == pointer
    assert Job.objects.count() == 1


def test_the_models_schema_is_checked(acme: Account, first: Job, zimg: ModelConfig) -> None:
    zimg.payload_schema = {"type": "object", "properties": {"steps": {"maximum": 10}}}
    zimg.save()
    problem(acme.client.post(url(first.id)), 422, "payload_invalid", "/payload/steps")
    changes = {"payload": {"steps": 5}}
    assert acme.client.post(url(first.id), changes, format="json").status_code == 202


def test_a_key_repeats_the_same_new_job(acme: Account, first: Job) -> None:
    headers = {"Idempotency-Key": "again-1"}
    one = acme.client.post(url(first.id), {"priority": 1}, format="json", headers=headers)
    two = acme.client.post(url(first.id), {"priority": 1}, format="json", headers=headers)
    assert one.json()["job_id"] == two.json()["job_id"]
    assert two["Idempotency-Replayed"] == "true"
    other = acme.client.post(url(first.id), {"priority": 2}, format="json", headers=headers)
    problem(other, 422, "idempotency_conflict")
    problem(acme.client.post(SUBMIT, BODY, format="json", headers=headers), 422, "idempotency_conflict")
    assert Job.objects.count() == 2


@pytest.mark.parametrize("scopes", [["submit"], ["read"], ["cancel", "read"]])
def test_a_key_needs_the_scopes_submit_and_read(acme: Account, first: Job, scopes: list[str]) -> None:
    problem(with_scopes(acme, scopes).post(url(first.id)), 403, "scope_required")
    assert with_scopes(acme, ["submit", "read"]).post(url(first.id)).status_code == 202


def test_another_tenants_job_is_unknown(other: Account, first: Job) -> None:
    problem(other.client.post(url(first.id)), 404, "unknown_job")


def test_a_job_removed_by_retention_is_unknown(acme: Account, first: Job) -> None:
    first.delete()
    answer = problem(acme.client.post(url(first.id)), 404, "unknown_job")
    assert "retention" in answer["detail"]


def test_an_erased_payload_has_to_be_replaced(acme: Account, first: Job) -> None:
    assert acme.client.delete(f"/api/v1/queue/jobs/{first.id}/data").status_code == 200
    problem(acme.client.post(url(first.id)), 409, "payload_erased", "/payload")
    job_id = acme.client.post(url(first.id), {"payload": {"prompt": "x"}}, format="json").json()["job_id"]
    assert Job.objects.get(id=job_id).payload == {"prompt": "x"}


def test_an_operators_rerun_is_the_tenants_job_and_is_audited(operator: Account, first: Job) -> None:
    job_id = operator.client.post(url(first.id)).json()["job_id"]
    assert Job.objects.get(id=job_id).tenant_id == first.tenant_id
    entry = AuditEntry.objects.get()
    assert (entry.action, entry.target) == ("rerun_job", f"job:{job_id}")
    assert entry.detail == {"rerun_of": first.id}
    assert entry.actor.startswith("key:")


@pytest.mark.parametrize("sees_payloads", [False, True])
def test_staff_need_the_permission_for_payloads(first: Job, sees_payloads: bool) -> None:
    user = User.objects.create_user("eve", is_staff=True)
    names = ["change_job", *(["view_payload"] if sees_payloads else [])]
    user.user_permissions.set(Permission.objects.filter(codename__in=names))
    client = APIClient()
    client.force_login(user)
    answer = client.post(url(first.id))
    assert answer.status_code == (202 if sees_payloads else 403)
    assert AuditEntry.objects.count() == sees_payloads


def test_the_tenants_limits_apply_to_operators_too(operator: Account, acme: Account, first: Job) -> None:
    Tenant.objects.filter(pk=acme.tenant.pk).update(max_queued=1)
    ports.production_ports().limit_caches.limits.clear()
    assert operator.client.post(url(first.id)).status_code == 202
    problem(operator.client.post(url(first.id)), 429, "tenant_queue_full")
    assert AuditEntry.objects.count() == 1, "a refused request leaves no entry"


def test_a_keys_models_limit_it(acme: Account, first: Job) -> None:
    ApiKey.objects.filter(tenant=acme.tenant).update(allowed_models=["flux"])
    forget_keys()
    problem(acme.client.post(url(first.id)), 403, "model_not_allowed", "/model")
