"""The dashboard in a real browser with a real lease layer: live updates, accessibility, phone, dark theme."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
from django.contrib.auth.models import Group, User
from django.utils import timezone

from admin_ui.parts.groups import write_groups
from foundation.ids import new_id
from gpus.leasing.contract import Leases
from gpus.models import AuditEntry, ModelConfig, Pause, QuarantinedSlot, Server
from gpus.registry.index_sync import mirror_registry
from jobs import ports, transitions
from jobs.models import Job, Rollup
from jobs.reports.history import RecentHistory
from jobs.reports.rollups import HOUR, MINUTE, counted, span_begin
from tests.admin_ui.browser import DESKTOP, PHONE, WebBrowser, wait_until
from tests.support.factories import make_job, make_model, make_server, make_tenant
from tests.support.queue_harness import open_index

pytestmark = pytest.mark.django_db(transaction=True)


@dataclass
class Works:
    """A fleet with a slot in every state, and a way to start jobs."""

    leases: Leases
    model: ModelConfig
    boss: User

    def start_job(self) -> Job:
        """Start a job as a worker does: lease, write, announce."""
        now = timezone.now()
        job = make_job(self.model, at=now)
        self.leases.push("flux", [job.ticket])
        lease = self.leases.claim("flux", worker="w", attempt_id=new_id())
        assert lease is not None
        start = transitions.Start(job.id, lease.attempt_id, lease.slot, "flux", "w", now)
        assert transitions.start_attempt(start) is transitions.StartOutcome.STARTED
        ports.production_ports().announce([job.id])
        return job


@pytest.fixture
def own_history(web_browser: WebBrowser, monkeypatch: pytest.MonkeyPatch) -> None:
    """A history cache per test: the shared one would keep rows of other tests of the same minute."""
    fresh = replace(ports.production_ports(), recent_history=RecentHistory())
    monkeypatch.setattr(ports, "production_ports", lambda: fresh)


@pytest.fixture
def works(web_browser: WebBrowser, own_history: None, fleet: str) -> Works:
    now = timezone.now()
    leases = ports.production_ports().leases(fleet)
    open_index(leases)
    model = make_model("flux", fleet=fleet)
    make_server("box-1", model=model, slots=3, healthy=True, checked_at=now)
    others = make_model("others", fleet=fleet)
    make_server("drains", model=others, desired="draining")
    make_server("ill", model=others, healthy=False, last_error="HTTP 500", checked_at=now)
    make_server("off", model=others, desired="off")
    make_server("plain", model=others, healthy=True, tells_health=False, checked_at=now)
    make_server("rests", model=others)
    suspect = make_server("suspect", model=others)
    QuarantinedSlot.objects.create(
        server=suspect, slot=0, reason="server_lost", since=now, until=now, job_id=new_id()
    )
    mirror_registry(leases, fleet=fleet)
    leases.quarantine("suspect/0", new_id())
    leases.rest_server("rests", 600)
    write_groups()
    return Works(leases, model, User.objects.create_superuser("boss", password="correct horse"))


def test_a_started_job_appears_without_reload_and_a_server_can_be_drained(
    web_browser: WebBrowser, works: Works
) -> None:
    with web_browser.visit() as visit:
        page = visit.go("/admin/")
        page.fill("input[name=username]", "boss")
        page.fill("input[name=password]", "correct horse")
        page.click("button[type=submit]")
        page.wait_for_selector("#freshness[data-state=live]")
        visit.assert_sound()

        visit.go("/admin/fleet/")
        page.wait_for_selector("#freshness[data-state=live]")
        page.evaluate("window.sameDocument = true")
        cells = page.locator("[aria-labelledby=server-box-1] .cell")
        assert [text.split()[1] for text in cells.all_inner_texts()] == ["free"] * 3
        job = works.start_job()
        page.wait_for_selector(f"[aria-labelledby=server-box-1] .cell-busy a[title='{job.id}']")

        page.locator("#draining-box-1").focus()
        page.keyboard.press("Enter")
        page.wait_for_selector("#confirm[open]")
        assert "Running jobs finish." in page.inner_text("#confirm")
        visit.assert_sound()
        page.keyboard.press("Escape")
        assert Server.objects.get(name="box-1").desired == "on"
        page.click("#draining-box-1")
        page.click("#confirm-yes")
        page.wait_for_selector("#toasts :text('box-1: set to draining.')")
        page.wait_for_selector("[aria-labelledby=server-box-1] .cell-draining")
        page.wait_for_selector("[aria-labelledby=server-box-1] .cell-off >> nth=1")
        assert page.evaluate("window.sameDocument")
        assert page.locator("#on-box-1").is_visible()
        visit.assert_quiet()
    assert Server.objects.get(name="box-1").desired == "draining"
    assert AuditEntry.objects.get().actor == "user:boss"


def test_a_server_without_health_endpoint_is_not_unhealthy_and_a_slot_can_be_freed(
    web_browser: WebBrowser, works: Works
) -> None:
    with web_browser.visit(works.boss) as visit:
        page = visit.go("/admin/fleet/")
        page.wait_for_selector("#freshness[data-state=live]")
        plain = page.locator("[aria-labelledby=server-plain]")
        assert "No health endpoint: a lost run holds its slot for up to 10 m." in plain.inner_text()
        assert plain.locator(".bad, .cell-sick").count() == 0
        page.click("#free-suspect-0")
        page.wait_for_selector("#confirm[open]")
        assert "two runs would share it then" in page.inner_text("#confirm")
        visit.assert_sound()
        page.click("#confirm-yes")
        page.wait_for_selector("#toasts :text('suspect/0 is free.')")
        page.wait_for_selector("[aria-labelledby=server-suspect] .cell-free")
        visit.assert_quiet()
    assert AuditEntry.objects.get().target == "slot:suspect/0"


def test_the_pages_on_a_phone_with_the_dark_theme(web_browser: WebBrowser, works: Works) -> None:
    works.start_job()
    works.leases.push("flux", [make_job(works.model, at=timezone.now()).ticket for _ in range(4)])
    with web_browser.visit(works.boss, size=PHONE, dark=True) as visit:
        for path in ("/admin/", "/admin/fleet/"):
            visit.go(path).wait_for_selector("#freshness[data-state=live]")
            visit.assert_sound()
        page = visit.go("/admin/queues/?window=24h")
        page.wait_for_selector("#freshness[data-state=live]")
        page.click("#pause-flux")
        page.fill("#confirm-reason", "a new driver")
        page.click("#confirm-yes")
        page.wait_for_selector("#resume-flux")
        visit.assert_sound()
    pause = Pause.objects.get()
    assert (pause.kind, pause.name, pause.reason) == ("model", "flux", "a new driver")


def test_the_queues_with_history_on_a_desktop(web_browser: WebBrowser, works: Works) -> None:
    now, tenant = timezone.now(), make_tenant()
    for span in (MINUTE, HOUR):
        Rollup.objects.create(
            span_seconds=span,
            at=span_begin(now, span),
            model="flux",
            tenant=tenant,
            completed=5,
            failed=1,
            gpu_seconds=9.0,
            waits=counted(1.0),
            runs=counted(3.0),
        )
    Pause.objects.create(kind="system", since=now, actor="user:x", reason="fire")
    with web_browser.visit(works.boss, size=DESKTOP) as visit:
        page = visit.go("/admin/queues/")
        page.wait_for_selector("#freshness[data-state=live]")
        visit.assert_sound()
        page.click("#window-7d")
        page.wait_for_selector("#window-7d[aria-current]")
        assert page.locator("svg.drawing").first.get_attribute("aria-label") == (
            "5 completed, 1 failed; at most 6 at a time"
        )


def test_without_the_stream_the_page_polls_and_a_viewer_has_no_buttons(
    web_browser: WebBrowser, works: Works
) -> None:
    viewer = User.objects.create_user("viewer", is_staff=True)
    viewer.groups.add(Group.objects.get(name="viewers"))
    with web_browser.visit(viewer) as visit:
        visit.page.clock.install()
        visit.page.add_init_script("delete window.EventSource")
        page = visit.go("/admin/fleet/")
        page.wait_for_selector("#freshness[data-state=polls]")
        assert page.locator("#servers button").count() == 0
        job = works.start_job()
        page.clock.run_for(5100)
        page.wait_for_selector(f".cell-busy a[title='{job.id}']")
        visit.assert_quiet()


def test_no_part_is_replaced_while_the_pointer_is_pressed(web_browser: WebBrowser, works: Works) -> None:
    with web_browser.visit(works.boss) as visit:
        page = visit.go("/admin/fleet/")
        page.wait_for_selector("#freshness[data-state=live]")
        page.hover("#off-box-1")
        page.mouse.down()
        page.evaluate("document.getElementById('off-box-1').mark = true")
        with page.expect_response(lambda answer: "part=servers" in answer.url) as answered:
            page.evaluate("htmx.trigger(document.body, 'changed')")
        answered.value.finished()
        page.evaluate("() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
        assert page.evaluate("document.getElementById('off-box-1').mark")
        page.mouse.up()
        page.wait_for_selector("#confirm[open]")  # the click is not lost
        page.click("#confirm button[value=no]")
        wait_until(page, "!document.getElementById('off-box-1').mark")  # the postponed reload followed
        visit.assert_quiet()
