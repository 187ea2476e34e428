"""The usage page: all tenants, one tenant with its chart, a table to download."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.test import Client
from django.utils import timezone

from jobs.models import Rollup, Tenant
from jobs.reports.rollups import HOUR, day_of
from tests.support.admin_ports import FakePorts
from tests.support.factories import make_tenant

pytestmark = pytest.mark.django_db
PAGE = "/admin/usage/"


@pytest.fixture(autouse=True)
def used(fake_ports: FakePorts) -> Tenant:
    tenant, day = make_tenant("acme"), day_of(timezone.now())
    for days, model, seconds in ((0, "zimg", 10.0), (1, "flux", 5.0), (40, "zimg", 7.0)):
        Rollup.objects.create(
            span_seconds=HOUR,
            at=day - timedelta(days=days),
            model=model,
            tenant=tenant,
            completed=2,
            gpu_seconds=seconds,
        )
    return tenant


def text(client: Client, query: str = "") -> str:
    answer = client.get(f"{PAGE}{query}")
    assert answer.status_code == 200
    return answer.content.decode()


def test_all_tenants_are_listed_with_a_link_to_their_own_usage(viewer: Client) -> None:
    page = text(viewer)
    assert '<a href="?tenant=acme&amp;days=30">acme</a>' in page
    assert ">15.0<" in page
    assert ">22.0<" in text(viewer, "?days=90")


def test_a_tenants_days_are_drawn(viewer: Client) -> None:
    page = text(viewer, "?tenant=acme")
    assert page.count('class="bar-completed"') == 2
    assert 'aria-label="GPU time per day: ' in page
    assert ">flux<" in text(viewer, "?tenant=acme&by=model")
    assert "No job ended" in text(viewer, "?tenant=acme&by=tag")


def test_it_can_be_downloaded(viewer: Client) -> None:
    answer = viewer.get(f"{PAGE}?tenant=acme&by=model&as=csv")
    assert answer["Content-Type"].startswith("text/csv")
    semicolons = viewer.get(f"{PAGE}?tenant=acme&by=model&as=csv&delimiter=semicolon")
    assert semicolons.content == answer.content.replace(b",", b";").replace(b".", b",")
    assert "flux,2,0,0,5.0" in answer.content.decode()


@pytest.mark.parametrize("query", ["?days=x", "?by=server", "?days=99999999999999999999"])
def test_unknown_values_show_the_default(viewer: Client, query: str) -> None:
    assert "Usage" in text(viewer, query)


def test_an_unknown_tenant_is_a_404(viewer: Client) -> None:
    assert viewer.get(f"{PAGE}?tenant=none").status_code == 404


def test_without_the_permission_there_is_no_page(client: Client, django_user_model: type) -> None:
    user = django_user_model.objects.create_user("ann", password="x", is_staff=True)  # type: ignore[attr-defined]
    client.force_login(user)
    assert client.get(PAGE).status_code == 403
