"""A staff session's access to the API follows its Django permissions, action by action."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.urls import resolve
from django.utils import timezone
from rest_framework.test import APIClient

from artifacts.models import Artifact
from gpus.models import AuditEntry, ModelConfig, Server
from jobs.operations.tenants import create_key
from tests.support.api_harness import Account, key_client
from tests.support.api_jobs import make_job
from tests.support.problems import problem
from tests.support.routes import ROUTES, RUN_ID, filled
from tests.support.sessions import session
from workflows.models import Run, Version, Workflow

NEVER_BY_A_SESSION = {
    "/api/v1/me",
    "/api/v1/usage",
    "/api/v1/queue/submit",
    "/api/v1/queue/submit-batch",
    "/api/v1/queue/estimate",
    # of a tenant, as are all paths of schedules
    "/api/v1/workflows",
    "/api/v1/workflows/<str:name>",
    "/api/v1/workflows/<str:name>/versions",
    "/api/v1/workflows/<str:name>/versions/<str:number>",
    "/api/v1/workflows/<str:name>/runs",
    "/api/v1/signals/<str:name>",
}
OF_PAYLOADS = {
    "/api/v1/artifacts/<str:artifact_id>": "permission_required",
    "/api/v1/queue/jobs/<str:job_id>/logs": "logs_hidden",
}
"""Viewers see no payloads."""
BY_A_TENANT = {("post", "/api/v1/artifacts")}
BY_SESSIONS = [
    route
    for route in ROUTES
    if route[1] not in NEVER_BY_A_SESSION and not route[1].startswith("/api/v1/schedules")
]
READS = [route for route in BY_SESSIONS if route[0] == "get"]
WRITES = [route for route in BY_SESSIONS if route[0] != "get" and route[:2] not in BY_A_TENANT]
SERVER = "/api/v1/admin/servers/s1"
BODIES: dict[str, dict[str, Any]] = {"patch": {"slots": 3}, "put": {}, "post": {}}


@pytest.fixture
def job_id(acme: Account, zimg: ModelConfig) -> str:
    Server.objects.create(name="s1", pool=zimg.pool, slots=2, machine="box")
    version = Version.objects.create(
        workflow=Workflow.objects.create(tenant=acme.tenant, name="film", latest=1),
        number=1,
        spec={"nodes": {"a": {"human": {"title": "?", "form": {}}}}},
        created_at=timezone.now(),
    )
    Run.objects.create(id=RUN_ID, version=version, tenant=acme.tenant, place_us=1, created_at=timezone.now())
    job = make_job(acme.tenant, "failed", error_fingerprint="0" * 16)
    Artifact.objects.create(  # under the same id, which fills all routes
        id=job.id,
        tenant_id=acme.tenant.pk,
        sha256="0" * 64,
        bytes=1,
        state="stored",
        created_at=job.created_at,
        expires_at=job.created_at,
    )
    return job.id


READS_PAYLOADS = {"/api/v1/queue/jobs/<str:job_id>/logs", "/api/v1/queue/jobs/<str:job_id>/rerun"}
"""Routes that also need the permission to see payloads."""


def ask(client: APIClient, method: str, path: str) -> Any:
    return getattr(client, method)(path, BODIES.get(method), format="json")


def needed(method: str, path: str) -> str:
    view = resolve(filled(path, "0" * 26)).func.view_class  # type: ignore[attr-defined]
    return str(view.needs[method.upper()])


@pytest.mark.django_db
def test_every_route_names_a_permission_that_exists() -> None:
    for method, path in [*READS, *WRITES]:
        app, _, codename = needed(method, path).partition(".")
        assert Permission.objects.filter(content_type__app_label=app, codename=codename).exists(), path
        assert codename.startswith("view_") == (method == "get"), path


def test_each_route_is_open_with_its_permission_alone(job_id: str) -> None:
    client = session()
    user = User.objects.get(username="ada")
    for method, path in [*READS, *WRITES]:
        problem(ask(client, method, filled(path, job_id)), 403, "permission_required")
        app, _, codename = needed(method, path).partition(".")
        names = [codename, *(["view_payload"] if path in READS_PAYLOADS else [])]
        user.user_permissions.set(Permission.objects.filter(content_type__app_label=app, codename__in=names))
        client.force_login(User.objects.get(pk=user.pk))
        assert ask(client, method, filled(path, job_id)).status_code != 403, path
        user.user_permissions.clear()
        client.force_login(User.objects.get(pk=user.pk))


def test_viewers_read_everything_and_change_nothing(job_id: str) -> None:
    client = session(group="viewers")
    for _, path in READS:
        if path in OF_PAYLOADS:
            problem(client.get(filled(path, job_id)), 403, OF_PAYLOADS[path])
        else:
            assert client.get(filled(path, job_id)).status_code == 200, path
    for method, path in WRITES:
        problem(ask(client, method, filled(path, job_id)), 403, "permission_required")
    assert not AuditEntry.objects.exists()


def test_operators_have_every_permission(job_id: str) -> None:
    client = session(group="operators")
    for method, path in WRITES:
        assert ask(client, method, filled(path, job_id)).status_code != 403, path


def test_actions_of_a_session_are_audited_under_its_user(job_id: str, operator: Account) -> None:
    assert session("gpus.change_server").patch(SERVER, {"desired": "off"}, format="json").status_code == 200
    operator.client.patch(SERVER, {"desired": "on"}, format="json")
    actors = list(AuditEntry.objects.order_by("id").values_list("actor", flat=True))
    assert actors == ["user:ada", f"key:{operator.key.partition('.')[0]}"]


def test_a_tenant_key_is_no_operator_key(job_id: str, acme: Account) -> None:
    problem(acme.client.patch(SERVER, {"desired": "off"}, format="json"), 403, "operator_required")
    _, key = create_key(acme.tenant)
    assert key_client(key).get("/api/v1/queue/jobs").status_code == 200
