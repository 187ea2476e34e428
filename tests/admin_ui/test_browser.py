"""A real browser: logs in, finds a job, cancels it through the dialog. Nothing is fetched from elsewhere."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from typing import Any

import pytest
from django.contrib.auth.models import User
from pytest_django.live_server_helper import LiveServer

from jobs.models import Job
from jobs.states import JobState

from .conftest import fill

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
SWITCHES = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-sync"]
pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium on PATH"),
    pytest.mark.django_db(transaction=True),
]


@pytest.fixture
def page(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    # playwright runs an event loop in this thread, and Django takes that for asynchronous code
    monkeypatch.setitem(os.environ, "DJANGO_ALLOW_ASYNC_UNSAFE", "1")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=SWITCHES)
        page = browser.new_page(viewport={"width": 1440, "height": 900})
        page.set_default_timeout(20_000)
        yield page
        browser.close()


@pytest.mark.usefixtures("world")
def test_an_operator_logs_in_and_cancels_a_job(page: Any, live_server: LiveServer) -> None:
    fill(jobs=24)
    User.objects.create_superuser("boss", password="correct horse")
    job = Job.objects.filter(state=JobState.QUEUED).order_by("id")[0]
    hosts, complaints = set(), []
    page.on("request", lambda request: hosts.add(request.url.split("/")[2]))
    page.on("pageerror", lambda error: complaints.append(str(error)))

    page.goto(f"{live_server.url}/admin/")
    page.fill("input[name=username]", "boss")
    page.fill("input[name=password]", "correct horse")
    page.click("button[type=submit]")
    page.goto(f"{live_server.url}/admin/jobs/job/?q={job.id}")
    page.click(f"a:has-text('{job.id}')")
    page.click("text=Cancel job")
    page.click("#dialog button[type=submit]")
    page.wait_for_selector("text=1 cancelled.")

    assert Job.objects.get(id=job.id).state == JobState.CANCELLED
    assert hosts == {live_server.url.removeprefix("http://")}
    assert complaints == []
