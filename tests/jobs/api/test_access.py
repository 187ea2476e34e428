"""Access to every route by every kind of caller."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.utils import timezone
from rest_framework.test import APIClient

import jobs.ports
from foundation import ttl_cache
from gpus.models import ModelConfig
from jobs.api import authentication
from jobs.models import ApiKey
from jobs.operations.tenants import create_key, revoke_key
from tests.support.api_harness import Account, forget_keys
from tests.support.api_jobs import make_job
from tests.support.problems import problem
from tests.support.routes import ROUTES, filled


def test_the_walk_finds_the_routes() -> None:
    assert len(ROUTES) >= 18
    assert ("post", "/api/v1/queue/submit") in ROUTES
    assert ("delete", "/api/v1/admin/dlq/<str:job_id>") in ROUTES


@pytest.mark.parametrize(("method", "path"), ROUTES)
def test_every_route_needs_a_key(anonymous: APIClient, db: None, method: str, path: str) -> None:
    answer = getattr(anonymous, method)(filled(path, "0" * 26))
    assert "`Authorization: Bearer <key>`" in problem(answer, 401, "not_authenticated")["detail"]
    assert answer["WWW-Authenticate"].startswith("Bearer")


@pytest.mark.parametrize(("method", "path"), ROUTES)
def test_a_key_of_another_tenant_reads_and_changes_no_job(
    acme: Account, other: Account, method: str, path: str
) -> None:
    job = make_job(acme.tenant, "failed", tags=["secret-tag"], metadata={"secret": 1})
    answer = getattr(other.client, method)(filled(path, job.id))
    assert answer.status_code in (200, 400, 403, 404, 415, 422)
    assert job.id not in answer.content.decode() or answer.status_code >= 400
    assert b"secret" not in answer.content
    if "<str:job_id>" in path:
        assert answer.status_code in (403, 404)
    if "/admin/" in path:
        problem(answer, 403, "operator_required")
    job.refresh_from_db()
    assert (job.state, job.dismissed_at, job.round) == ("failed", None, 1)


@pytest.mark.parametrize(
    "header", ["Bearer nonsense", "Bearer ", "Basic YTpi", "Bearer " + "a" * 8 + "." + "b" * 32, "x"]
)
def test_a_bad_key_is_refused(anonymous: APIClient, db: None, header: str) -> None:
    answer = anonymous.get("/api/v1/queue/jobs", HTTP_AUTHORIZATION=header)
    problem(answer, 401, "invalid_key")
    assert answer["WWW-Authenticate"].startswith("Bearer")


def test_a_key_with_only_the_right_prefix_is_refused(acme: Account, anonymous: APIClient) -> None:
    guess = acme.key[:-1] + ("a" if acme.key[-1] != "a" else "b")
    problem(anonymous.get("/api/v1/queue/jobs", HTTP_AUTHORIZATION=f"Bearer {guess}"), 401, "invalid_key")


def test_a_revoked_key_stops_working_when_its_cache_entry_expires(
    acme: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]
    monkeypatch.setattr(ttl_cache.time, "monotonic", lambda: now[0])
    forget_keys()
    assert acme.client.get("/api/v1/queue/jobs").status_code == 200
    revoke_key(ApiKey.objects.get())
    now[0] += jobs.ports.KEEP_KEY_SECONDS
    problem(acme.client.get("/api/v1/queue/jobs"), 401, "invalid_key")


def test_an_expired_key_is_refused(acme: Account, anonymous: APIClient) -> None:
    key, plaintext = create_key(acme.tenant)
    key.expiry_date = timezone.now()
    key.save()
    problem(anonymous.get("/api/v1/queue/jobs", HTTP_AUTHORIZATION=f"Bearer {plaintext}"), 401, "invalid_key")


@pytest.mark.usefixtures("all_remembered")
def test_a_cached_key_costs_no_query(acme: Account, django_assert_num_queries: object) -> None:
    authentication.principal_of_key(acme.key, jobs.ports.production_ports())
    with django_assert_num_queries(0):  # type: ignore[operator]
        assert authentication.principal_of_key(acme.key, jobs.ports.production_ports()) is not None


@pytest.fixture
def staff(db: None) -> Client:
    client = Client(enforce_csrf_checks=True, raise_request_exception=False)
    client.force_login(User.objects.create_superuser("boss"))
    return client


def test_a_staff_session_is_an_operator_and_needs_the_csrf_token(staff: Client, zimg: ModelConfig) -> None:
    assert staff.get("/api/v1/admin/model-configs").status_code == 200
    body = {"model_type": "sync", "max_retries": 3}
    refused = staff.put("/api/v1/admin/model-configs/zimg", body, content_type="application/json")
    problem(refused, 403, "csrf_failed")
    staff.get("/admin/")
    token = "a" * 32
    staff.cookies["csrftoken"] = token
    accepted = staff.put(
        "/api/v1/admin/model-configs/zimg",
        body,
        content_type="application/json",
        headers={"X-CSRFToken": token},
    )
    assert accepted.status_code == 200, accepted.content
    submitted = staff.post(
        "/api/v1/queue/submit",
        {"model": "zimg", "payload": {}},
        content_type="application/json",
        headers={"X-CSRFToken": token},
    )
    problem(submitted, 403, "tenant_required")


def test_a_session_without_staff_status_is_not_authenticated(db: None) -> None:
    client = Client(raise_request_exception=False)
    client.force_login(User.objects.create_user("guest"))
    problem(client.get("/api/v1/queue/jobs"), 401, "not_authenticated")


def test_an_operators_key_submits_as_its_own_tenant(operator: Account, zimg: ModelConfig) -> None:
    from jobs.models import Job

    assert (
        operator.client.post(
            "/api/v1/queue/submit", {"model": "zimg", "payload": {}}, format="json"
        ).status_code
        == 202
    )
    assert Job.objects.get().tenant == operator.tenant
