"""Every admin page has a main region, a skip link, one heading of level one, and no style or script inside;
lists fit a phone. The pages come from the URL conf, so that a new page is covered."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from django.contrib import admin
from django.contrib.auth.models import User
from django.test import Client
from django.urls import URLPattern, URLResolver, get_resolver, reverse

from admin_ui import ADMIN_PATH
from tests.admin_ui.browser import WebBrowser

from .rows import fill

NO_PAGES = frozenset(
    f"/{ADMIN_PATH}/{path}"
    for path in (
        *("logout/", "jsi18n/", "autocomplete/", "search/", "login/", "now/", "pulse/", "pause/", "resume/"),
        *("flower/", "jobs/callback/deliveries/", "admin_ui/deadletter/groups/", "jobs/job/bulk/step/"),
    )
)
"""Routes without arguments that are fragments, answers to a button, or another program's pages."""
LISTS = ("jobs_job", "admin_ui_deadletter", "jobs_callback", "jobs_callbacktry", "gpus_auditentry")
PHONE = (390, 844)
INLINE = re.compile(
    r"<style\b[^>]*>|<script\b(?![^>]*(?:\bsrc=|application/json))[^>]*>"
    r"|<[a-z][^>]*\s(?:style|on[a-z]+)=[^>]*>"
)
"""What the Content-Security-Policy forbids."""
IN_TEST_PAGES = re.compile(rf"^/{ADMIN_PATH}/(?:jobs|gpus|workflows|schedules)/\w+/(?:[^/]+/change/)?$")
MAX_HEIGHT = 4000
"""CSS pixels of a list of 50 rows."""


def routes(resolver: URLResolver, prefix: str = "/") -> Iterator[str]:
    """Yield the routes without arguments."""
    for entry in resolver.url_patterns:
        path = prefix + str(entry.pattern).removeprefix("^").removesuffix("\\Z")
        if "<" in path or "(" in path:
            continue
        if isinstance(entry, URLResolver):
            yield from routes(entry, path)
        elif isinstance(entry, URLPattern) and path.startswith(f"/{ADMIN_PATH}/"):
            yield path


def pages() -> list[str]:
    """The admin's pages: those without arguments, and one row of each kind."""
    fixed = sorted(
        {*routes(get_resolver())} - NO_PAGES
    )  # also loads the URL conf, which registers the models
    rows = []
    for model in admin.site._registry:
        row = model._default_manager.first()
        if row is not None:
            name = f"admin:{model._meta.app_label}_{model._meta.model_name}_change"
            rows.append(reverse(name, args=[admin.utils.quote(row.pk)]))
    return fixed + rows


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


def faults_of(page: str) -> list[str]:
    """Return what a page lacks, or has and may not have."""
    marks = ('<main id="main-content"', 'href="#main-content"', "<h1")
    counts = {mark: len(re.findall(re.escape(mark), page)) for mark in marks}
    return [f"{mark} {count} times" for mark, count in counts.items() if count != 1] + INLINE.findall(page)


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
