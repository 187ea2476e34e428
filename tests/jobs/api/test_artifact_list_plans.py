"""A list of artifacts with a rare state finds its rows by an index, for tenants and for operators."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from artifacts.models import Artifact
from foundation.ids import new_id
from jobs.models import ApiKey, Tenant
from tests.support.api_harness import account

pytestmark = [pytest.mark.django_db, pytest.mark.database]
URL = "/api/v1/artifacts"
STORED = 3000


def make_artifacts(tenant: Tenant, count: int, **values: Any) -> None:
    now = datetime.now(UTC)
    Artifact.objects.bulk_create(
        Artifact(
            id=new_id(now.timestamp()),
            tenant_id=tenant.pk,
            sha256=hashlib.sha256(f"{values} {number}".encode()).hexdigest(),
            bytes=1,
            created_at=now,
            expires_at=now,
            **values,
        )
        for number in range(count)
    )


def plan_of(sql: str) -> list[str]:
    """The steps of the plan, with the statistics of all rows."""
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE artifacts_artifact")
        cursor.execute(f"EXPLAIN {'QUERY PLAN ' if connection.vendor == 'sqlite' else ''}{sql}")
        return [str(row[-1]) for row in cursor.fetchall()]


@pytest.mark.parametrize("kind", [ApiKey.Kind.TENANT, ApiKey.Kind.OPERATOR])
def test_a_rare_state_is_found_among_many_artifacts_by_an_index(kind: ApiKey.Kind) -> None:
    sender = account("acme", kind)
    make_artifacts(sender.tenant, STORED, state="stored")
    make_artifacts(sender.tenant, 2, state="promised")
    with CaptureQueriesContext(connection) as queries:
        assert len(sender.client.get(f"{URL}?state=promised").json()["results"]) == 2
    (listed,) = [query["sql"] for query in queries if 'FROM "artifacts_artifact"' in query["sql"]]
    plan = plan_of(listed)
    index = "artifact_state_idx" if kind == ApiKey.Kind.OPERATOR else "artifact_tenant_state_idx"
    assert index in plan[0] + plan[min(1, len(plan) - 1)], plan
    assert not [step for step in plan if "Filter" in step or "Sort" in step or "TEMP B-TREE" in step], plan
