"""/me and /usage: a tenant sees only its own usage, an operator that of any tenant."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from jobs.models import ApiKey, Rollup, TagUsage, Tenant
from jobs.reports.rollups import HOUR, day_of
from tests.support.api_harness import Account, ApiHarness, account, make_model
from tests.support.problems import problem

ME, USAGE = "/api/v1/me", "/api/v1/usage"


@pytest.fixture
def used(acme: Account, other: Account, api: ApiHarness) -> None:
    """acme used 10 GPU-seconds today and 5 the day before, other 7."""
    day = day_of(api.clock.now())
    for tenant, at, model, seconds in (
        (acme.tenant, day, "zimg", 10.0),
        (acme.tenant, day - timedelta(days=1), "flux", 5.0),
        (other.tenant, day, "zimg", 7.0),
    ):
        Rollup.objects.create(
            span_seconds=HOUR, at=at, model=model, tenant=tenant, completed=2, failed=1, gpu_seconds=seconds
        )
    TagUsage.objects.create(day=day.date(), tenant=acme.tenant, tag="night", completed=1, gpu_seconds=4.0)


def rows(answer: Any) -> list[tuple[str, float]]:
    assert answer.status_code == 200, answer.content
    return [(row["key"], row["gpu_seconds"]) for row in answer.json()["rows"]]


def test_a_tenant_sees_what_it_used(acme: Account, other: Account, api: ApiHarness, used: None) -> None:
    today = api.clock.now().date()
    days = [((today - timedelta(days=1)).isoformat(), 5.0), (today.isoformat(), 10.0)]
    assert rows(acme.client.get(USAGE)) == days
    assert rows(acme.client.get(USAGE, {"by": "model"})) == [("flux", 5.0), ("zimg", 10.0)]
    assert rows(acme.client.get(USAGE, {"by": "tag"})) == [("night", 4.0)]
    assert rows(acme.client.get(USAGE, {"from": today.isoformat()})) == days[1:]
    assert rows(other.client.get(USAGE)) == [(today.isoformat(), 7.0)]
    answer = acme.client.get(USAGE).json()
    assert answer["total"] == {"key": "", "completed": 4, "failed": 2, "cancelled": 0, "gpu_seconds": 15.0}
    assert acme.client.get(USAGE, {"by": "tag"}).json()["total"] is None


@pytest.mark.database
def test_an_operator_sees_any_tenants_and_a_tenant_no_others(
    acme: Account, operator: Account, used: None
) -> None:
    url = "/api/v1/admin/tenants/other/usage"
    assert [seconds for _, seconds in rows(operator.client.get(url))] == [7.0]
    assert acme.client.get(url).status_code == 403
    problem(operator.client.get("/api/v1/admin/tenants/none/usage"), 404, "unknown_tenant", "/tenant")


@pytest.mark.database
def test_usage_comes_as_a_table_too(acme: Account, used: None) -> None:
    answer = acme.client.get(USAGE, {"by": "model", "as": "csv"})
    assert answer["Content-Type"] == "text/csv; charset=utf-8"
    assert 'filename="usage-acme-' in answer["Content-Disposition"]
    assert answer.content.decode().splitlines() == [
        "model,completed,failed,cancelled,gpu_seconds",
        "flux,2,1,0,5.0",
        "zimg,2,1,0,10.0",
    ]
    by_semicolon = acme.client.get(USAGE, {"by": "model", "as": "csv", "delimiter": "semicolon"})
    assert by_semicolon.content.decode().splitlines()[1] == "flux;2;1;0;5,0"
    assert acme.client.get(USAGE, {"as": "csv", "delimiter": ";"}).status_code == 400


@pytest.mark.parametrize(
    "parameters",
    [
        {"from": "yesterday"},
        {"from": "20260101"},
        {"from": "2026-02-30"},
        {"from": "2026-01-02", "to": "2026-01-01"},
        {"from": "2000-01-01"},
        {"to": "0001-01-01"},
        {"from": "9999-12-31", "to": "9999-12-31"},
        {"from": "2026-W01-1"},
        {"by": "server"},
        {"as": "xml"},
        {"tenant": "other"},
    ],
)
def test_bad_questions_are_refused_by_name(acme: Account, parameters: dict[str, str]) -> None:
    assert acme.client.get(USAGE, parameters).status_code == 400


@pytest.mark.database
def test_me_returns_the_rights_of_a_key(acme: Account, api: ApiHarness) -> None:
    make_model("zimg", payload_schema={"type": "object"}, result_schema={"type": "array"})
    make_model("flux")
    Tenant.objects.filter(pk=acme.tenant.pk).update(
        allowed_models=["zimg"], daily_gpu_seconds=100.0, max_running=3, submits_per_second=2.0
    )
    api.limit_caches.limits.clear()
    said = acme.client.get(ME).json()
    assert (said["tenant"], said["key"]["kind"], said["scopes"]) == (
        "acme",
        "tenant",
        ["cancel", "read", "submit"],
    )
    assert said["models"] == [
        {
            "model": "zimg",
            "payload_schema": {"type": "object"},
            "result_schema": {"type": "array"},
            "paused": False,
            "typical_run_seconds": None,
        }
    ]
    assert said["limits"]["max_running"] == 3
    assert said["limits"]["daily_gpu_seconds"] == 100.0
    assert said["limits"]["submit_burst"] == 2
    assert said["used"]["waiting"] == 0
    assert acme.key not in str(said)


def test_a_deleted_keys_requests_are_refused_while_it_is_cached(acme: Account) -> None:
    assert acme.client.get(ME).status_code == 200
    ApiKey.objects.all().delete()
    problem(acme.client.get(ME), 401, "invalid_key")
    acme.tenant.delete()
    for url in (ME, USAGE):
        problem(acme.client.get(url), 401, "invalid_key")


@pytest.mark.database
def test_a_submit_counts_as_waiting(acme: Account) -> None:
    make_model("zimg")
    body = {"model": "zimg", "payload": {}}
    assert acme.client.post("/api/v1/queue/submit", body, format="json").status_code == 202
    assert acme.client.get(ME).json()["used"]["waiting"] == 1


def test_a_key_without_the_scope_read_sees_neither(db: None) -> None:
    one = account("acme")
    ApiKey.objects.update(scopes=["submit"])
    assert one.client.get(ME).status_code == 403
    assert one.client.get(USAGE).status_code == 403
