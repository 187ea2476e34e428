"""Scopes, rotation and revocation of keys, and the visibility of results."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import OperationalError
from django.utils import timezone
from rest_framework.test import APIClient

import jobs.ports
from gpus.models import AuditEntry, ModelConfig
from jobs.api import authentication
from jobs.models import ApiKey, Event, Job
from jobs.operations.tenants import LONGEST_LIFE, create_key, rotate_key
from tests.support.api_harness import Account, forget_keys, key_client, make_model
from tests.support.api_jobs import make_job
from tests.support.problems import problem
from tests.support.routes import ROUTES, filled
from tests.support.sessions import session

SUBMIT, JOBS = "/api/v1/queue/submit", "/api/v1/queue/jobs"
JOB = {"model": "zimg", "payload": {"prompt": "a secret"}}
KEYS = "/api/v1/admin/tenants/acme/keys"


def client_of(account: Account, *scopes: str, **values: Any) -> APIClient:
    kind = values.pop("kind", ApiKey.Kind.TENANT)
    return key_client(create_key(account.tenant, kind, scopes=scopes or None, **values)[1])


# -- scopes ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("scope", ["submit", "read", "cancel"])
def test_a_key_is_limited_to_its_scopes(acme: Account, zimg: ModelConfig, scope: str) -> None:
    client, job = client_of(acme, scope), make_job(acme.tenant, "queued")
    answers = {
        "submit": client.post(SUBMIT, JOB, format="json"),
        "read": client.get(f"{JOBS}/{job.id}"),
        "cancel": client.post(f"{JOBS}/{job.id}/cancel"),
    }
    for needed, answer in answers.items():
        if needed == scope:
            assert answer.status_code in (200, 202), answer.content
        else:
            assert needed in problem(answer, 403, "scope_required")["detail"]


@pytest.mark.parametrize(("method", "path"), [route for route in ROUTES if "/queue/" in route[1]])
def test_every_job_route_needs_a_scope(acme: Account, method: str, path: str) -> None:
    job = make_job(acme.tenant, "queued")
    nothing = client_of(acme, "operate", kind=ApiKey.Kind.OPERATOR)
    problem(getattr(nothing, method)(filled(path, job.id)), 403, "scope_required")


def test_an_operator_key_without_operate_acts_as_a_tenant_key(acme: Account, other: Account) -> None:
    client = client_of(acme, "read", kind=ApiKey.Kind.OPERATOR)
    problem(client.get("/api/v1/admin/pauses"), 403, "operator_required")
    assert client.get(f"{JOBS}/{make_job(other.tenant, 'queued').id}").status_code == 404


def test_an_operator_scope_in_a_tenant_key_has_no_effect(acme: Account) -> None:
    row, plaintext = create_key(acme.tenant)
    ApiKey.objects.filter(pk=row.pk).update(scopes=["read", "operate"])
    problem(key_client(plaintext).get("/api/v1/admin/pauses"), 403, "operator_required")


def test_a_key_without_read_gets_no_result_with_a_repeated_submit(acme: Account, zimg: ModelConfig) -> None:
    blind = client_of(acme, "submit")
    job_id = blind.post(SUBMIT, JOB, format="json", HTTP_IDEMPOTENCY_KEY="k").json()["job_id"]
    now = timezone.now()
    Job.objects.filter(id=job_id).update(state="completed", finished_at=now, result={"url": "a secret"})
    content = blind.post(SUBMIT, JOB, format="json", HTTP_IDEMPOTENCY_KEY="k").json()
    assert (content["outcome"], content["result"], content["result_hidden"]) == ("finished", None, True)
    seeing = acme.client.post(SUBMIT, JOB, format="json", HTTP_IDEMPOTENCY_KEY="k").json()
    assert (seeing["result"], seeing["result_hidden"]) == ({"url": "a secret"}, False)


@pytest.mark.parametrize(("permissions", "sees"), [
    (["jobs.view_job"], False), (["jobs.view_job", "jobs.view_payload"], True),
])  # fmt: skip
def test_staff_see_results_only_with_the_permission(
    acme: Account, permissions: list[str], sees: bool
) -> None:
    job = make_job(acme.tenant, "completed", result={"url": "a secret"})
    content = session(*permissions).get(f"{JOBS}/{job.id}").json()
    assert (content["result"], content["result_hidden"]) == ({"url": "a secret"} if sees else None, not sees)


@pytest.mark.parametrize(("permissions", "sees"), [
    (["jobs.view_job"], False), (["jobs.view_job", "jobs.view_payload"], True),
])  # fmt: skip
def test_partial_output_is_as_protected_as_the_result(
    acme: Account, permissions: list[str], sees: bool
) -> None:
    job = make_job(acme.tenant, "running", event_seq=1)
    data = {"attempt": 1, "part": 1, "output": ["a secret"]}
    Event.objects.create(job=job, seq=1, type="partial", at=job.created_at, data=data)
    result = session(*permissions).get(f"{JOBS}/{job.id}/events").content.decode()
    assert "event: partial" in result
    assert ("a secret" in result, '"output_hidden": true' in result) == (sees, not sees)
    assert "a secret" in client_of(acme, "read").get(f"{JOBS}/{job.id}/events").content.decode()


# -- models ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("of_tenant", "of_key", "may"), [
    (None, None, True), (["zimg"], None, True), (["flux"], None, False), ([], None, False),
    (None, ["zimg"], True), (None, ["flux"], False), (["zimg"], ["flux", "zimg"], True),
    (["flux"], ["zimg"], False),
])  # fmt: skip
def test_a_key_can_narrow_the_models_of_its_tenant(
    acme: Account, zimg: ModelConfig, of_tenant: list[str] | None, of_key: list[str] | None, may: bool
) -> None:
    make_model("flux")
    acme.tenant.allowed_models = of_tenant
    acme.tenant.save()
    client = client_of(acme, allowed_models=of_key)
    answer = client.post(SUBMIT, JOB, format="json")
    batch = client.post("/api/v1/queue/submit-batch", {"jobs": [JOB]}, format="json").json()["jobs"][0]
    if may:
        assert (answer.status_code, batch["outcome"]) == (202, "queued")
    else:
        problem(answer, 403, "model_not_allowed", "/model")
        assert batch["code"] == "model_not_allowed"
        assert not Job.objects.exists()


# -- last used -------------------------------------------------------------------------------------


def test_the_last_use_is_recorded_once_a_minute(
    acme: Account, django_assert_num_queries: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = ApiKey.objects.get()
    assert row.last_used_at is None
    acme.client.get(JOBS)
    row.refresh_from_db()
    noted = row.last_used_at
    assert noted is not None
    forget_keys()
    with django_assert_num_queries(1):
        authentication.principal_of_key(acme.key, jobs.ports.production_ports())
    ApiKey.objects.update(last_used_at=noted - timedelta(seconds=61))
    forget_keys()
    acme.client.get(JOBS)
    row.refresh_from_db()
    assert row.last_used_at is not None
    assert row.last_used_at >= noted


def test_a_read_only_database_does_not_block_readers(acme: Account, monkeypatch: pytest.MonkeyPatch) -> None:
    def read_only(*_: Any, **__: Any) -> int:
        raise OperationalError("attempt to write a readonly database")

    monkeypatch.setattr("django.db.models.query.QuerySet.update", read_only)
    assert acme.client.get(JOBS).status_code == 200


# -- the operators' routes -------------------------------------------------------------------------


def test_an_operator_creates_lists_and_revokes_keys(operator: Account, acme: Account) -> None:
    body = {"name": "ci", "scopes": ["submit", "read"], "allowed_models": ["zimg"]}
    made = operator.client.post(KEYS, body, format="json")
    assert made.status_code == 201, made.content
    plaintext = made.json()["key"]
    assert key_client(plaintext).get(JOBS).status_code == 200
    listed = operator.client.get(KEYS)
    assert plaintext.split(".")[1] not in listed.content.decode(), "shown once"
    row = listed.json()["results"][0]
    assert (row["name"], row["scopes"], row["allowed_models"]) == ("ci", ["read", "submit"], ["zimg"])
    assert (row["is_valid"], row["last_used_at"] is not None) == (True, True)
    assert operator.client.post(f"{KEYS}/{row['prefix']}/revoke").json()["is_valid"] is False
    forget_keys()
    problem(key_client(plaintext).get(JOBS), 401, "invalid_key")
    problem(operator.client.post(f"{KEYS}/{row['prefix']}/rotate"), 409, "key_not_active")
    deeds = list(AuditEntry.objects.order_by("id").values_list("action", "target"))
    assert deeds == [("create_key", f"key:{row['prefix']}"), ("revoke_key", f"key:{row['prefix']}")]


def test_a_rotated_key_works_during_the_overlap(operator: Account, acme: Account) -> None:
    old, old_plaintext = create_key(acme.tenant, name="ci", scopes=["read"], allowed_models=["zimg"])
    answer = operator.client.post(f"{KEYS}/{old.prefix}/rotate", {"overlap_seconds": 3600}, format="json")
    assert answer.status_code == 201, answer.content
    new = answer.json()
    assert (new["name"], new["scopes"], new["allowed_models"]) == ("ci", ["read"], ["zimg"])
    assert (new["prefix"] != old.prefix, new["expires_at"]) == (True, None)
    assert [key_client(one).get(JOBS).status_code for one in (new["key"], old_plaintext)] == [200, 200]
    old.refresh_from_db()
    assert old.expiry_date is not None
    assert abs((old.expiry_date - timezone.now()).total_seconds() - 3600) < 60
    assert old.rotated_to is not None
    assert old.rotated_to.prefix == new["prefix"]
    ApiKey.objects.filter(pk=old.pk).update(expiry_date=timezone.now() - timedelta(seconds=1))
    forget_keys()
    problem(key_client(old_plaintext).get(JOBS), 401, "invalid_key")
    assert key_client(new["key"]).get(JOBS).status_code == 200


def test_a_rotation_does_not_prolong_a_key_and_happens_once(acme: Account) -> None:
    soon = timezone.now() + timedelta(minutes=5)
    old, _ = create_key(acme.tenant, expires_at=soon)
    new, _ = rotate_key(old, overlap_seconds=86400)
    old.refresh_from_db()
    assert old.expiry_date == soon, "its remaining lifetime was shorter than the overlap"
    assert new.expiry_date is not None
    assert abs((new.expiry_date - soon).total_seconds()) < 60, "the lifetime of the old key"
    from jobs.domain.errors import KeyNotActive

    with pytest.raises(KeyNotActive):
        rotate_key(old)


def test_a_key_with_an_excessive_lifetime_can_be_rotated(acme: Account) -> None:
    old, _ = create_key(acme.tenant)
    end = datetime(9999, 12, 31, tzinfo=UTC)
    ApiKey.objects.filter(pk=old.pk).update(expiry_date=end, created=timezone.now() - timedelta(days=1))
    new, _ = rotate_key(old, overlap_seconds=60)
    assert new.expiry_date is not None
    assert abs(new.expiry_date - timezone.now() - LONGEST_LIFE) < timedelta(minutes=1)


@pytest.mark.parametrize("path", ["keys", "keys/{prefix}/rotate", "webhook-secret"])
@pytest.mark.parametrize("raw", ["[]", "false", "0", '""'])
def test_a_body_that_is_no_object_is_not_an_empty_body(
    operator: Account, acme: Account, path: str, raw: str
) -> None:
    """An empty body creates a key with all scopes of its kind."""
    old, _ = create_key(acme.tenant)
    before = ApiKey.objects.count()
    url = f"/api/v1/admin/tenants/acme/{path.format(prefix=old.prefix)}"
    answer = operator.client.generic("POST", url, raw, content_type="application/json")
    problem(answer, 422, "validation_failed", "")
    assert ApiKey.objects.count() == before
    assert operator.client.generic("POST", url, "null", content_type="application/json").status_code == 201


@pytest.mark.parametrize(("body", "code"), [
    ({"scopes": ["fly"]}, "validation_failed"), ({"scopes": []}, "validation_failed"),
    ({"scopes": ["operate"]}, "scope_needs_operator"), ({"kind": "root"}, "validation_failed"),
    ({"expires_at": "2001-01-01T00:00:00Z"}, "expires_in_past"),
    ({"expires_at": "9999-12-31T00:00:00Z"}, "expires_too_far"),
    ({"expires_at": "tomorrow"}, "validation_failed"), ({"allowed_models": ["a b"]}, "validation_failed"),
    ({"name": "x" * 51}, "validation_failed"), ({"nope": 1}, "validation_failed"),
])  # fmt: skip
def test_an_invalid_new_key_is_refused(
    operator: Account, acme: Account, body: dict[str, Any], code: str
) -> None:
    before = ApiKey.objects.count()
    problem(operator.client.post(KEYS, body, format="json"), 422, code)
    assert ApiKey.objects.count() == before


@pytest.mark.parametrize("path", [
    "/api/v1/admin/tenants/nobody/keys", KEYS + "/12345678/revoke", KEYS + "/%00/rotate",
])  # fmt: skip
def test_unknown_tenants_and_keys_are_not_found(operator: Account, acme: Account, path: str) -> None:
    assert operator.client.post(path).status_code == 404


def test_a_key_is_not_reachable_through_another_tenant(
    operator: Account, acme: Account, other: Account
) -> None:
    foreign = ApiKey.objects.get(tenant=other.tenant)
    problem(operator.client.post(f"{KEYS}/{foreign.prefix}/revoke"), 404, "unknown_key")
    foreign.refresh_from_db()
    assert not foreign.revoked


def test_a_new_webhook_secret_overlaps_with_the_old_one(operator: Account, acme: Account) -> None:
    route = "/api/v1/admin/tenants/acme/webhook-secret"
    first = operator.client.post(route).json()
    assert first["old_until"] is None, "no old secret existed"
    second = operator.client.post(route, {"overlap_seconds": 60}, format="json").json()
    assert second["webhook_secret"] != first["webhook_secret"]
    assert second["old_until"] is not None
    assert operator.client.post(route, {"overlap_seconds": 0}, format="json").json()["old_until"] is None
