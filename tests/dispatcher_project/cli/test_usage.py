"""`usage` and `tenants`: what the API's rows say, as tables."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from jobs.models import ApiKey, Rollup, Tenant
from jobs.operations.tenants import create_key
from jobs.reports.rollups import HOUR, day_of
from tests.support.factories import make_job, make_tenant
from tests.support.terminal import Terminal

pytestmark = pytest.mark.django_db


@pytest.fixture
def acme() -> Tenant:
    """It used 10 GPU-seconds today and 5 yesterday."""
    tenant, day = make_tenant("acme", daily_gpu_seconds=100.0, weight=2.0), day_of(timezone.now())
    for at, model, seconds in ((day, "zimg", 10.0), (day - timedelta(days=1), "flux", 5.0)):
        Rollup.objects.create(
            span_seconds=HOUR, at=at, model=model, tenant=tenant, completed=2, gpu_seconds=seconds
        )
    return tenant


def test_usage_is_shown_by_tenant_day_and_model(acme: Tenant, terminal: Terminal) -> None:
    [every] = terminal("usage", "--json").json["rows"]
    assert (every["key"], every["gpu_seconds"], every["completed"]) == ("acme", 15.0, 4)
    days = terminal("usage", "acme", "--json").json["rows"]
    assert [row["gpu_seconds"] for row in days] == [5.0, 10.0]
    table = terminal("usage", "acme", "--by", "model").said
    assert [line.split()[:2] for line in table.splitlines()[1:]] == [["flux", "5.0"], ["zimg", "10.0"]]
    assert terminal("usage", "acme", "--by", "model", "--csv").said.splitlines()[1] == "flux,2,0,0,5.0"
    semicolons = terminal("usage", "acme", "--by", "model", "--csv", "semicolon").said
    assert semicolons.splitlines()[1] == "flux;2;0;0;5,0"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["nobody"], "no tenant is named nobody"),
        (["--by", "day"], "--by needs a tenant"),
        (["--from", "2026-01-02", "--to", "2026-01-01"], "--from 2026-01-02 is after"),
    ],
)
def test_wrong_arguments_are_one_line(
    acme: Tenant, terminal: Terminal, arguments: list[str], says: str
) -> None:
    run = terminal("usage", *arguments)
    assert (run.status, says in run.said) == (2, True), run.said


@pytest.mark.parametrize("day", ["0001-01-01", "9999-12-31", "2026-W01-1", "today"])
def test_a_day_without_room_for_a_range_is_named(terminal: Terminal, day: str) -> None:
    run = terminal("usage", "--to", day)
    assert f"argument --to: '{day}' is no day such as 2026-01-31" in run.said


def test_a_time_without_ends_says_so(acme: Tenant, terminal: Terminal) -> None:
    said = terminal("usage", "acme", "--from", "2020-01-01", "--to", "2020-01-31").said
    assert said.strip() == "no job ended from 2020-01-01 to 2020-01-31"


def test_tenants_are_listed_with_their_limits_and_use(acme: Tenant, terminal: Terminal) -> None:
    for _ in range(2):
        make_job("zimg", tenant=acme)
        create_key(acme, ApiKey.Kind.TENANT)
    ApiKey.objects.filter(pk=ApiKey.objects.values("pk")[:1]).update(revoked=True)
    [row] = [row for row in terminal("tenants", "--json").json if row["tenant"] == "acme"]
    assert (row["waiting"], row["running"], row["gpu_seconds_today"], row["valid_keys"]) == (2, 0, 10.0, 1)
    assert "10 of 100" in terminal("tenants", "acme").said
