"""Every admin page has a main region, a skip link, one heading of level one, and no style or script inside;
lists fit a phone. The pages come from the URL conf, so that a new page is covered."""

from __future__ import annotations

import re

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.urls import reverse

from admin_ui import ADMIN_PATH
from tests.admin_ui.browser import WebBrowser
from tests.admin_ui.rows import fill
from tests.support.accessibility import PHONE, faults_of, pages

LISTS = ("jobs_job", "admin_ui_deadletter", "jobs_callback", "jobs_callbacktry", "gpus_auditentry")
IN_TEST_PAGES = re.compile(rf"^/{ADMIN_PATH}/(?:jobs|gpus|workflows|schedules)/\w+/(?:[^/]+/change/)?$")
MAX_HEIGHT = 4000
"""CSS pixels of a list of 50 rows."""


@pytest.mark.django_db
@pytest.mark.usefixtures("fake_ports")
def test_every_page_has_a_main_region_one_heading_and_no_inline_style_or_script(boss: Client) -> None:
    fill(jobs=12)
    """Lists and rows are read, and checked too, in test_pages.py."""
    found: dict[str, list[str]] = {}
    looked = 0
    for path in pages():
        if IN_TEST_PAGES.search(path):
            continue
        answer = boss.get(path, follow=True)
        page = answer.content.decode() if answer.status_code == 200 and not answer.streaming else ""
        if "<html" not in page:
            continue  # a fragment or a refusal
        looked += 1
        if faults := faults_of(page):
            found[path] = faults
    assert found == {}
    assert looked > 20


@pytest.mark.django_db(transaction=True)
def test_lists_fit_a_phone(web_browser: WebBrowser) -> None:
    fill(jobs=400)
    boss = User.objects.create_superuser("boss")
    with web_browser.visit(boss, size=PHONE) as visit:
        for name in LISTS:
            page = visit.go(reverse(f"admin:{name}_changelist"))
            high = page.evaluate("document.documentElement.scrollHeight")
            assert high <= MAX_HEIGHT, f"{name}: {high} px"
            assert page.evaluate("document.documentElement.scrollWidth") <= PHONE[0], name
            assert "Select record" not in page.inner_text("body")
            icons = page.locator(".material-symbols-outlined:not([aria-hidden='true'], [aria-label])")
            assert icons.count() == 0, "a screen reader would read the icons' names"
