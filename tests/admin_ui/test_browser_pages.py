"""Jobs and dead letters in a real browser: live updates, keyboard, phone, dark theme, accessibility."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.contrib.auth.models import Group, User
from django.utils import timezone

from admin_ui.pages import bulk
from admin_ui.parts.groups import write_groups
from gpus.errors import RunFailed
from gpus.leasing.contract import Leases
from gpus.models import AuditEntry, ModelConfig
from gpus.protocol import LeaseRef
from gpus.registry.index_sync import mirror_registry
from jobs import ports, transitions
from jobs.domain.retry import Ending, RetryPolicy
from jobs.models import Job
from tests.admin_ui.browser import DESKTOP, ON_A_DESK, PHONE, WebBrowser, wait_until
from tests.support.factories import make_job, make_model, make_running, make_server
from tests.support.pictures import png
from tests.support.queue_harness import open_index

pytestmark = pytest.mark.django_db(transaction=True)


@dataclass
class Works:
    model: ModelConfig
    leases: Leases
    boss: User
    viewer: User

    def report(self, job: Job, kind: str, **data: Any) -> None:
        """Write an event of the job's running attempt, as its worker does."""
        job.refresh_from_db()
        assert job.live_attempt is not None
        ref = LeaseRef("gpu-1/0", job.id, job.live_attempt, 1)
        assert transitions.note_progress(ref, kind, data, timezone.now())
        ports.production_ports().announce([job.id])

    def fail(
        self, job: Job, *, final: bool = True, error: RunFailed | None = None, at: datetime | None = None
    ) -> None:
        """End the job's running attempt with an error. at: now, if None."""
        job.refresh_from_db()
        assert job.live_attempt is not None
        error = error or RunFailed(f"out of luck in step {job.attempts_made}")
        end = transitions.End(
            job_id=job.id,
            attempt_id=job.live_attempt,
            epoch=1,
            slot="gpu-1/0",
            ending=Ending(error=error, suspect=False),
            policy=RetryPolicy(max_retries=0 if final else 9, same_failures=0),
            at=at or timezone.now(),
        )
        assert transitions.end_attempt(end).won
        ports.production_ports().announce([job.id])


@pytest.fixture
def works(web_browser: WebBrowser, fleet: str) -> Works:
    leases = ports.production_ports().leases(fleet)
    open_index(leases)
    model = make_model("zimg", fleet=fleet)
    make_server("gpu-1", model=model, slots=2)
    mirror_registry(leases, fleet=fleet)
    write_groups()
    viewer = User.objects.create_user("viewer", is_staff=True)
    viewer.groups.add(Group.objects.get(name="viewers"))
    return Works(model, leases, User.objects.create_superuser("boss"), viewer)


def dead_letters(works: Works, count: int) -> list[Job]:
    jobs = []
    for _ in range(count):
        job = make_job(works.model, at=timezone.now())
        make_running(job, at=timezone.now())
        works.fail(job)
        jobs.append(job)
    return jobs


def test_a_jobs_timeline_grows_while_it_runs(web_browser: WebBrowser, works: Works) -> None:
    begin = timezone.now() - timedelta(seconds=30)
    payload = {"image": png(), "far": "https://elsewhere.example/clip.mp4", "text": "<b>bold</b>"}
    job = make_job(works.model, at=begin, payload=payload, callback_url="https://hooks.example.com/")
    make_running(job, at=begin + timedelta(seconds=5), remote_id="run-7")
    with web_browser.visit(works.boss) as visit:
        page = visit.go(f"/admin/jobs/job/{job.id}/change/")
        page.wait_for_selector(".lane-live .bar-polling")
        assert "queued 5.00 s" in page.inner_text(".lane-text")
        image = page.locator("figure img")
        image.scroll_into_view_if_needed()
        wait_until(page, "document.querySelector('figure img').naturalWidth === 1")
        assert page.get_attribute("a[href='https://elsewhere.example/clip.mp4']", "rel").startswith(
            "noopener"
        )
        visit.assert_sound()
        page.evaluate("window.sameDocument = true")
        works.fail(job, final=False)
        page.wait_for_selector(".lane-error:has-text('out of luck')")
        page.wait_for_selector(".lane-live .bar-pause")
        page.wait_for_selector(".step-type:has-text('retrying')")
        page.locator(".buttons a:has-text('Priority')").focus()
        page.keyboard.press("Enter")
        page.fill("#dialog input[name=priority]", "2")
        page.keyboard.press("Enter")
        page.wait_for_selector("text=1 set to priority 2.")
        assert Job.objects.get(id=job.id).priority == 2
        visit.assert_quiet()


TRACE = """\
Traceback (most recent call last):
  File "/opt/x/gpu_host/local/child.py", line 165, in _run
    result = self._call(run)
  File "/srv/models/flux.py", line 12, in run
    raise ValueError("no weights")
ValueError: no weights"""


@pytest.mark.parametrize("phone", ON_A_DESK)
def test_progress_and_output_grow_on_the_page_of_a_running_job(
    web_browser: WebBrowser, works: Works, phone: bool
) -> None:
    begin = timezone.now() - timedelta(seconds=30)
    job = make_job(works.model, at=begin)
    for number in range(6):
        at = begin + timedelta(seconds=2 * number)
        make_running(job, at=at)
        error = RunFailed("ValueError: no weights", detail=TRACE)
        works.fail(job, final=False, error=error, at=at + timedelta(seconds=1))
        transitions.queue_retry(job.id, at + timedelta(seconds=1.5))
    make_running(job, at=begin + timedelta(seconds=14))
    works.report(job, "progress", part=1, progress=0.25, text="step 5 of 20")
    works.report(job, "partial", part=2, output=["Once upon a time"])
    with web_browser.visit(works.boss, size=PHONE if phone else DESKTOP) as visit:
        page = visit.go(f"/admin/jobs/job/{job.id}/change/")
        page.wait_for_selector(".job-progress:has-text('25 %'):has-text('step 5 of 20')")
        page.wait_for_selector(".tail:has-text('Once upon a time')")
        assert [name.strip() for name in page.locator(".lane-name > a").all_inner_texts()] == [
            "Attempt 1", "Attempts 2–6", "Attempt 7",
        ]  # fmt: skip
        page.click(".traceback > summary")
        page.wait_for_selector(".traceback[open] > pre:has-text('flux.py')")
        assert "child.py" not in page.inner_text(".traceback > pre")
        visit.assert_sound()
        assert page.inner_text("#job-spoken[role=status]") == "Job running, 20 %"
        page.evaluate("document.querySelector('#job-spoken').isKept = true")
        works.report(job, "progress", part=3, progress=0.62, text="step 12 of 20")
        works.report(job, "partial", part=4, output=[" there was a fox. " * 200])
        page.wait_for_selector(".job-progress:has-text('62 %'):has-text('step 12 of 20')")
        page.wait_for_selector(".tail:has-text('there was a fox.')")
        assert page.locator(".traceback[open]").count() == 1, "a live update keeps it open"
        wait_until(page, "document.querySelector('#job-spoken').textContent === 'Job running, 60 %'")
        assert page.evaluate("document.querySelector('#job-spoken').isKept"), "else no reader announces it"
        assert page.evaluate("document.querySelector('.tail').scrollHeight > 320"), "it scrolls"
        assert page.evaluate("document.querySelector('.tail').scrollTop") == 0, "and shows its end"
        page = visit.go("/admin/jobs/job/")
        page.wait_for_selector(f"tr:has-text('{job.id}'):has-text('62 %')")
        visit.assert_quiet()


def test_a_dialog_opens_although_its_button_is_replaced_by_a_live_update(
    web_browser: WebBrowser, works: Works
) -> None:
    job = make_job(works.model, at=timezone.now())
    with web_browser.visit(works.boss) as visit:
        page = visit.go(f"/admin/jobs/job/{job.id}/change/")
        page.evaluate("document.querySelector('#job-live').isOld = true")

        def answer_late(route: Any) -> None:
            make_running(job, at=timezone.now())
            wait_until(page, "!document.querySelector('#job-live').isOld")
            route.continue_()

        page.route("**/cancel_one/", answer_late)
        page.click(".buttons a:has-text('Cancel')")
        page.wait_for_selector("#dialog button[type=submit]")
        visit.assert_quiet()


def test_a_job_on_a_phone_with_the_dark_theme(web_browser: WebBrowser, works: Works) -> None:
    [job] = dead_letters(works, 1)
    with web_browser.visit(works.boss, size=PHONE, dark=True) as visit:
        page = visit.go(f"/admin/jobs/job/{job.id}/change/")
        page.wait_for_selector(".end-failed")
        visit.assert_sound()
        page.click(".buttons a:has-text('Retry')")
        page.wait_for_selector("#dialog button[type=submit]")
        visit.assert_sound()
        page.click("#dialog button[type=submit]")
        page.wait_for_selector("text=1 back in the queue.")
        page.wait_for_selector(".lane-live .bar-queued")
        assert page.locator(".buttons a:has-text('Retry')").count() == 0
        visit.assert_quiet()


def test_why_a_job_waits_is_no_wider_than_a_phone(web_browser: WebBrowser, works: Works) -> None:
    jobs = [make_job(works.model, at=timezone.now()) for _ in range(9)]
    works.leases.push("zimg", [job.ticket for job in jobs])
    job = jobs[-1]
    with web_browser.visit(works.boss, size=PHONE) as visit:
        page = visit.go(f"/admin/jobs/job/{job.id}/change/")
        page.wait_for_selector(".steps .mono:has-text('gpu_seconds_ahead')")
        visit.assert_sound()


@pytest.mark.parametrize("phone", ON_A_DESK)
def test_a_group_of_dead_letters_is_counted_and_retried(
    web_browser: WebBrowser, works: Works, monkeypatch: pytest.MonkeyPatch, phone: bool
) -> None:
    monkeypatch.setattr(bulk, "STEP", 2)
    letters = dead_letters(works, 5)
    size = {"size": PHONE, "dark": True} if phone else {}
    with web_browser.visit(works.boss, **size) as visit:
        page = visit.go("/admin/admin_ui/deadletter/")
        page.wait_for_selector(".kind")
        visit.assert_sound()
        page.click(".kind a:has-text('Retry 5')")
        page.wait_for_selector("text=5 dead letters match.")
        assert Job.objects.filter(state="failed").count() == 5
        page.click("button:has-text('Retry 5')")
        page.wait_for_selector("text=Done: 5 of 5 dead letters retried.")
        assert page.get_attribute("progress", "value") == "100"
        visit.assert_sound()
    assert set(Job.objects.values_list("state", "round")) == {("queued", 2)}
    assert (
        works.leases.has_tickets("zimg", [Job.objects.get(id=job.id).ticket for job in letters]) == [True] * 5
    )
    assert AuditEntry.objects.filter(actor="user:boss", action="retry_jobs").count() == 3


def test_a_viewer_gets_no_buttons_and_a_403(web_browser: WebBrowser, works: Works) -> None:
    [job] = dead_letters(works, 1)
    with web_browser.visit(works.viewer) as visit:
        page = visit.go(f"/admin/jobs/job/{job.id}/change/")
        page.wait_for_selector(".end-failed")
        assert page.locator(".buttons").count() == 0
        page = visit.go("/admin/admin_ui/deadletter/")
        page.wait_for_selector(".kind a:has-text('Show')")
        assert page.locator("a:has-text('Retry')").count() == 0
        visit.assert_quiet()
        answer = page.goto(f"{web_browser.url}/admin/jobs/job/bulk/?action=retry_jobs")
        assert answer.status == 403
    assert Job.objects.get(id=job.id).state == "failed"
