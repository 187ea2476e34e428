"""Rules of tenants over HTTP, for operators."""

from __future__ import annotations

from typing import Any

import pytest

from gpus.leasing.values import Wakes
from gpus.models import AuditEntry, Pool
from gpus.protocol import TenantSpec
from jobs.limits.submit_limits import limits_of
from jobs.models import Tenant
from tests.support.api_harness import Account, ApiHarness

LIST = "/api/v1/admin/tenants"
PAGE = f"{LIST}/acme"
NEW = {
    "tenant": "acme",
    "weight": 1.0,
    "highest_band": "normal",
    "max_running": None,
    "max_queued": None,
    "max_queued_seconds": None,
    "submits_per_second": None,
    "submit_burst": None,
    "daily_gpu_seconds": None,
    "allowed_models": None,
}


@pytest.fixture(autouse=True)
def pool(db: None, acme: Account) -> Pool:
    return Pool.objects.create(name="zimg")


def test_a_new_tenant_has_the_normal_band_and_no_limit(operator: Account) -> None:
    answer = operator.client.get(PAGE)
    assert (answer.status_code, answer.json()) == (200, NEW)


def test_a_change_is_live_and_has_an_audit_entry(operator: Account, acme: Account, api: ApiHarness) -> None:
    answer = operator.client.patch(PAGE, {"highest_band": "urgent", "max_running": 3}, format="json")
    assert (answer.status_code, answer.json()) == (
        200,
        {**NEW, "highest_band": "urgent", "max_running": 3, "changed": True, "live": True},
    )
    name = str(acme.tenant.pk)
    assert api.leases.tenants == {name: TenantSpec(name, 1.0, "urgent", 3)}
    assert api.wakes == [Wakes("unparked", None, 1)]
    entry = AuditEntry.objects.get(action="change_tenant")
    assert (entry.target, entry.detail["values"]) == (
        "tenant:acme",
        {"highest_band": ["normal", "urgent"], "max_running": [None, 3]},
    )


def test_an_unchanged_value_leaves_no_audit_entry(operator: Account) -> None:
    answer = operator.client.patch(PAGE, {"weight": 1.0}, format="json")
    assert answer.json()["changed"] is False
    assert not AuditEntry.objects.filter(action="change_tenant").exists()


def test_null_removes_a_limit(operator: Account) -> None:
    operator.client.patch(PAGE, {"max_running": 3}, format="json")
    assert operator.client.patch(PAGE, {"max_running": None}, format="json").json()["max_running"] is None


def test_changed_submit_limits_apply_at_once(operator: Account, acme: Account, api: ApiHarness) -> None:
    limits = {
        "max_queued": 7,
        "max_queued_seconds": 60.0,
        "submits_per_second": 2.5,
        "submit_burst": 10,
        "daily_gpu_seconds": 3600.0,
        "allowed_models": ["flux"],
    }
    limits_of(acme.tenant.pk, api.ports)  # the cached value must not apply
    answer = operator.client.patch(PAGE, limits, format="json")
    assert (answer.status_code, answer.json()) == (200, {**NEW, **limits, "changed": True, "live": True})
    found = limits_of(acme.tenant.pk, api.ports)
    assert (found.max_queued, found.burst, found.allowed_models) == (7, 10, frozenset({"flux"}))
    values = AuditEntry.objects.get(action="change_tenant").detail["values"]
    assert values == {name: [None, value] for name, value in limits.items()}


def test_without_redis_a_change_is_stored_and_reported_as_not_live(
    operator: Account, api: ApiHarness
) -> None:
    api.leases.away = True
    answer = operator.client.patch(PAGE, {"weight": 2.5}, format="json")
    assert (answer.status_code, answer.json()["live"]) == (200, False)
    assert operator.client.get(PAGE).json()["weight"] == 2.5


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({"weight": 0}, "/weight"),
        ({"weight": -1}, "/weight"),
        ({"weight": 1e7}, "/weight"),
        ({"daily_gpu_seconds": 10**308}, "/daily_gpu_seconds"),
        ({"weight": "2"}, "/weight"),
        ({"weight": True}, "/weight"),
        ({"weight": None}, "/weight"),
        ({"max_running": 0}, "/max_running"),
        ({"max_running": -3}, "/max_running"),
        ({"max_running": 1.5}, "/max_running"),
        ({"max_running": 10**9}, "/max_running"),
        ({"highest_band": "top"}, "/highest_band"),
        ({"highest_band": None}, "/highest_band"),
        ({"max_runing": 3}, "/max_runing"),
        ({"max_queued": 0}, "/max_queued"),
        ({"max_queued_seconds": 0}, "/max_queued_seconds"),
        ({"submits_per_second": -1}, "/submits_per_second"),
        ({"submit_burst": 5}, "/submit_burst"),
        ({"daily_gpu_seconds": 0}, "/daily_gpu_seconds"),
        ({"allowed_models": "flux"}, "/allowed_models"),
        ({"allowed_models": ["a model"]}, "/allowed_models/0"),
        ({}, ""),
    ],
)
def test_invalid_rules_are_refused_with_a_pointer(
    operator: Account, body: dict[str, Any], pointer: str
) -> None:
    answer = operator.client.patch(PAGE, body, format="json")
    problem = answer.json()
    assert (answer.status_code, problem["code"], problem["errors"][0]["pointer"]) == (
        422,
        "validation_failed",
        pointer,
    )


def test_an_unknown_tenant_is_404(operator: Account) -> None:
    for answer in (
        operator.client.get("/api/v1/admin/tenants/nobody"),
        operator.client.patch("/api/v1/admin/tenants/nobody", {"weight": 2}, format="json"),
    ):
        assert (answer.status_code, answer.json()["code"]) == (404, "unknown_tenant")


def test_a_tenant_reads_and_changes_no_rules(acme: Account) -> None:
    for answer in (acme.client.get(PAGE), acme.client.patch(PAGE, {"weight": 100}, format="json")):
        assert (answer.status_code, answer.json()["code"]) == (403, "operator_required")


def test_tenants_are_listed_by_name_page_by_page(operator: Account) -> None:
    for name in ("zeta", "beta", "delta"):
        Tenant.objects.create(name=name, weight=2.0)
    names = sorted(Tenant.objects.values_list("name", flat=True))
    address, seen = "/api/v1/admin/tenants?limit=2", []
    while address:
        page = operator.client.get(address).json()
        assert 1 <= len(page["results"]) <= 2
        seen += [one["tenant"] for one in page["results"]]
        address = page["next"]
    assert seen == names
    (beta,) = [one for one in operator.client.get(LIST).json()["results"] if one["tenant"] == "beta"]
    assert beta == {**NEW, "tenant": "beta", "weight": 2.0}
    assert beta == operator.client.get(f"{LIST}/beta").json()


@pytest.mark.parametrize(
    ("query", "code"),
    [("cursor=cD0lMDA=", "bad_cursor"), ("limit=0", "invalid_parameter"), ("page=2", "unknown_parameter")],
)
def test_unknown_parameters_of_the_list_are_refused(operator: Account, query: str, code: str) -> None:
    answer = operator.client.get(f"{LIST}?{query}")
    assert (answer.status_code, answer.json()["code"]) == (400, code)


def test_a_tenant_does_not_see_the_others(acme: Account) -> None:
    assert acme.client.get(LIST).status_code == 403
