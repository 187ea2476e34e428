"""A server's page and *Add a model server* in a real browser, under the strict policy."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import User

from gpus.models import Server
from gpus.registry.index_sync import mirror_registry
from jobs import ports
from tests.admin_ui.browser import ON_A_PHONE, PHONE, WebBrowser
from tests.support.factories import make_model, make_server
from tests.support.queue_harness import open_index
from tests.support.servers.cog_server import CogServer

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.mark.parametrize("phone", ON_A_PHONE)
def test_a_server_is_drained_on_its_page_and_edited_below(
    web_browser: WebBrowser, fleet: str, phone: bool
) -> None:
    leases = ports.production_ports().leases(fleet)
    open_index(leases)
    make_server("box-1", model=make_model("zimg", fleet=fleet), slots=2, host="boot-1")
    mirror_registry(leases, fleet=fleet)
    gpu = {"utilisation": 90.0, "used_mb": 2048.0, "total_mb": 8192.0, "temperature": 60.0, "power": 200.0}
    for warm in ([], ["zimg"]):
        leases.record_heartbeat("box-1", {}, {"warm": warm, "gpu": gpu})
    size: dict[str, Any] = {"size": PHONE, "dark": True} if phone else {}
    with web_browser.visit(User.objects.create_superuser("boss"), **size) as visit:
        page = visit.go("/admin/gpus/server/box-1/change/")
        page.wait_for_selector(".cell")
        page.wait_for_selector("figcaption:has-text('Temperature')")
        page.click("#window-24h")
        page.wait_for_selector("h2:has-text('Last day')")
        page.wait_for_selector("figcaption:has-text('Temperature')")
        page.wait_for_selector("text=No attempts in the last seven days.")
        assert not page.is_visible("#submit-row")
        visit.assert_sound()
        page.click("#draining-box-1")
        page.click("#confirm-yes")
        page.wait_for_selector(".is-draining")
        assert Server.objects.get(name="box-1").desired == "draining"
        page.click("summary:has-text('Edit')")
        page.fill("[name=machine]", "rack-7")
        page.click("[name=_continue]")
        page.wait_for_selector(".cell")
        saved = Server.objects.get(name="box-1")
        assert (saved.machine, saved.desired) == ("rack-7", "draining")
        visit.assert_quiet()


@pytest.mark.parametrize("phone", ON_A_PHONE)
def test_a_server_is_added_by_its_address(web_browser: WebBrowser, fleet: str, phone: bool) -> None:
    size: dict[str, Any] = {"size": PHONE, "dark": True} if phone else {}
    with CogServer() as cog, web_browser.visit(User.objects.create_superuser("boss"), **size) as visit:
        page = visit.go("/admin/gpus/server/register/")
        visit.assert_sound()
        page.fill("[name=url]", cog.url)
        page.click("button:has-text('Inspect')")
        page.wait_for_selector("button:has-text('Register')")
        visit.assert_sound()
        page.fill("[name=server]", "box-1")
        page.fill("[name=model_0]", "sdxl")
        page.click("button:has-text('Register')")
        page.wait_for_selector("text=sdxl is registered on box-1.")
        page.wait_for_selector(".cell, .note")
        visit.assert_quiet()
    assert Server.objects.get(name="box-1").pool_id == "sdxl"
