"""Every operation of the published contract with another tenant's key reads and changes no foreign data."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.apps import apps
from django.core import serializers
from rest_framework.test import APIClient

from gpus.models import ModelConfig
from jobs.models import ApiKey, Callback, Job
from jobs.operations.tenants import create_key
from tests.support.api_harness import Account
from tests.support.api_jobs import NOW, make_job

SECRET = "hush-hush"
BODIES: dict[str, Any] = {
    "submit_job": {"model": "zimg", "payload": {}},
    "submit_batch": {"jobs": [{"model": "zimg", "payload": {}}]},
    "cancel_jobs": {"filter": {"tenant": "acme"}},
    "retry_jobs": {"filter": {"tenant": "acme"}},
    "dismiss_dead_letters": {"filter": {"tenant": "acme"}},
    "change_priority": {"priority": 1},
}
OWN = ("jobs.IdempotencyKey", "jobs.SweepRun", "jobs.Tally")


def operations(client: APIClient) -> list[tuple[str, str, str]]:
    document = json.loads(client.get("/api/v1/schema").content)
    return [
        (operation["operationId"], method, path)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
        if method in ("get", "post", "put", "patch", "delete")
    ]


def rows_but_of(account: Account) -> str:
    """All rows except those of the asking tenant and the last use of keys."""
    found: list[Any] = []
    for app in ("jobs", "gpus"):
        for model in apps.get_app_config(app).get_models():
            found += model._base_manager.order_by("pk")
    body = json.loads(serializers.serialize("json", found))
    own = set(Job.objects.filter(tenant=account.tenant).values_list("pk", flat=True))
    for row in body:
        row["fields"].pop("last_used_at", None)
    return json.dumps([r for r in body if r["pk"] not in own and r["fields"].get("job") not in own])


@pytest.fixture
def private_job(acme: Account, zimg: ModelConfig) -> dict[str, str]:
    """Create one of every kind of row that a tenant can own."""
    result = {"tags": [SECRET], "metadata": {"x": SECRET}, "result": SECRET, "error_message": SECRET}
    jobs = {state: make_job(acme.tenant, state, **result) for state in ("queued", "running", "failed")}
    key, _ = create_key(acme.tenant, name=SECRET)
    Callback.objects.create(
        id="msg_1", job=jobs["failed"], url=f"https://{SECRET}.example", body=SECRET, created_at=NOW
    )
    return {"job_id": jobs["failed"].id, "prefix": key.prefix, "running": jobs["running"].id}


def test_another_tenants_key_reads_and_changes_nothing(
    acme: Account, other: Account, private_job: dict[str, str]
) -> None:
    calls = operations(other.client)
    assert len(calls) > 40
    before = rows_but_of(other)
    for job_id in (private_job["job_id"], private_job["running"]):
        for name, method, route in calls:
            path = route
            places = {"job_id": job_id, "prefix": private_job["prefix"], "tenant": "acme", "model": "zimg"}
            for place, value in (*places.items(), ("server", "s1")):
                path = path.replace("{" + place + "}", value)
            answer = getattr(other.client, method)(path, BODIES.get(name), format="json")
            assert answer.status_code < 500, (name, answer.content)
            assert SECRET.encode() not in answer.content, name
            if job_id in path:
                assert answer.status_code in (401, 403, 404), name
            if "/admin/" in path:
                assert answer.status_code == 403, name
    assert rows_but_of(other) == before


def test_a_query_finds_only_the_tenants_own_jobs(
    acme: Account, other: Account, private_job: dict[str, str]
) -> None:
    for query in (f"?tag={SECRET}", "?status=failed", "?model=zimg", f"?cursor={private_job['job_id']}"):
        answer = other.client.get(f"/api/v1/queue/jobs{query}")
        assert answer.status_code in (200, 400)
        assert SECRET.encode() not in answer.content
    assert SECRET.encode() in acme.client.get(f"/api/v1/queue/jobs?tag={SECRET}").content, (
        "the owner reads it"
    )
    assert ApiKey.objects.filter(tenant=acme.tenant, name=SECRET, revoked=False).exists()
