"""A real browser signs in, finds a job and cancels it in the dialog, without a request to another host."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import User

from jobs.domain.states import JobState
from jobs.models import Job
from tests.admin_ui.browser import WebBrowser
from tests.admin_ui.rows import fill

pytestmark = pytest.mark.django_db(transaction=True)


def test_an_operator_signs_in_and_cancels_a_job(web_browser: WebBrowser) -> None:
    fill(jobs=24)
    User.objects.create_superuser("boss", password="correct horse")
    job = Job.objects.filter(state=JobState.QUEUED).order_by("id")[0]
    with web_browser.visit() as visit:
        page = visit.go("/admin/")
        page.fill("input[name=username]", "boss")
        page.fill("input[name=password]", "correct horse")
        page.click("button[type=submit]")
        visit.go(f"/admin/jobs/job/?q={job.id}")
        page.click(f"a:has-text('{job.id}')")
        page.click("text=Cancel job")
        page.click("#dialog button[type=submit]")
        page.wait_for_selector("text=1 cancelled.")
        visit.assert_quiet()
    assert Job.objects.get(id=job.id).state == JobState.CANCELLED
