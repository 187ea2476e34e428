"""Every page has a Content-Security-Policy without unsafe-*; a real browser reports violations."""

from __future__ import annotations

import re
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import unfold
from django.conf import settings
from django.contrib import admin
from django.contrib.auth.models import Group, User
from django.contrib.staticfiles import finders
from django.test import Client, RequestFactory
from django.urls import reverse
from unfold.settings import CONFIG_DEFAULTS

import dispatcher_project.urls  # noqa: F401  registers the pages
from tests.admin_ui.browser import Visit, WebBrowser, wait_until
from tests.admin_ui.rows import fill

PATHS = (
    "/",
    "/admin/login/",
    "/api/v1/docs",
    "/api/v1/queue/stats",
    "/nowhere",
    "/metrics",
    "/admin/flower/",
    "/static/admin_ui/favicon.svg",
)
SCRIPT = """{
    const one = document.createElement('script')
    one.textContent = 'window.bad = 1'
    document.body.append(one)
}"""
UNFOLD = Path(unfold.__file__).parent
STATIC = Path(settings.BASE_DIR) / "admin_ui" / "static" / "admin_ui"
ATTRIBUTE = re.compile(
    r"""\sx-(?:data|init|on:[\w:.-]+|show|bind:[\w-]+|text|if|model)(?:\.[\w.-]+)?="([^"]*)\""""
)
EITHER = re.compile(r"\{%\s*if\b[^%]*%\}([^{]*)\{%\s*else\s*%\}([^{]*)\{%\s*endif\s*%\}")
TAG, VALUE = re.compile(r"\{%.*?%\}"), re.compile(r"\{\{.*?\}\}")
UNUSED = ("contrib/forms", "contrib/import_export", "contrib/constance", "unfold_crispy")
"""Parts of unfold that this project does not use."""


@pytest.mark.django_db
@pytest.mark.parametrize("path", PATHS)
def test_every_answer_has_a_policy_without_unsafe(client: Client, path: str) -> None:
    answer = client.get(path)
    given = answer["Content-Security-Policy"]
    assert "unsafe" not in given
    assert "*" not in given
    assert "default-src 'none'" in given
    for directive in ("frame-ancestors 'none'", "base-uri 'none'", "form-action 'self'"):
        assert directive in given
    assert answer["X-Content-Type-Options"] == "nosniff"
    assert answer["Referrer-Policy"] == "same-origin"
    assert answer["Cross-Origin-Opener-Policy"] == "same-origin"
    assert "camera=()" in answer["Permissions-Policy"]


def test_a_csrf_failure_gets_a_page_without_a_style_sheet(db: None) -> None:
    refused = Client(enforce_csrf_checks=True).post(reverse("admin:login"), {"username": "a"})
    assert refused.status_code == 403
    assert b"<style" not in refused.content
    assert b"older than your sign-in" in refused.content


def test_the_style_sheet_has_unfolds_colours() -> None:
    written = (STATIC / "colors.css").read_text()
    for name, weights in CONFIG_DEFAULTS["COLORS"].items():
        for weight, value in weights.items():
            line = f"--color-{name}-{weight}: "
            assert line in written
            assert name == "primary" or f"{line}{value};" in written
    assert not admin.site._get_colors("COLORS", RequestFactory().get("/"))


def test_alpine_is_the_build_that_needs_no_eval() -> None:
    path = finders.find("unfold/js/alpine/alpine.js")
    assert path is not None
    content = Path(path).read_bytes()
    assert sha256(content).hexdigest().startswith("0d18d7f8")
    assert not re.search(rb"new (Async)?Function\b", content)


def expressions() -> list[str]:
    """All Alpine expressions in unfold's templates, with values in place of Django's tags."""
    found = set()
    for path in UNFOLD.rglob("*.html"):
        if any(part in str(path) for part in UNUSED):
            continue
        for written in ATTRIBUTE.findall(path.read_text()):
            found.add(" ".join(VALUE.sub("0", TAG.sub("", EITHER.sub(r"\2", written))).split()))
    return sorted(one for one in found if "{%" not in one)


@pytest.mark.django_db(transaction=True)
def test_every_expression_of_unfolds_templates_is_supported_or_replaced(web_browser: WebBrowser) -> None:
    """An update of unfold may add one that Alpine's CSP build can't parse: add it to strict.js."""
    rewritten = re.findall(
        r'^    ("[^\n]*"|\'[^\n]*\')\s*:', (STATIC / "strict.js").read_text(), re.MULTILINE
    )
    known = {" ".join(one[1:-1].split()) for one in rewritten}
    assert len(known) == 7
    asked = expressions()
    assert len(asked) > 90
    with web_browser.visit() as visit:
        page = visit.go("/admin/login/")
        wait_until(page, "window.Alpine !== undefined")
        unread = page.evaluate(
            """asked => asked.filter(one => {
                let bad = false
                Alpine.setErrorHandler(error => { bad ||= error.message.startsWith('CSP Parser Error') })
                Alpine.evaluate(document.createElement('i'), one)
                return bad
            })""",
            asked,
        )
    body = {
        one
        for one in unread
        if "activeTab" in one and ("getCurrentTab" in one or "localStorage.getItem" in one)
    }
    assert set(unread) - body <= known


PAGES = (
    "/admin/",
    "/admin/fleet/",
    "/admin/queues/",
    "/admin/password_change/",
    "/admin/nowhere/",
    "/admin/jobs/job/",
    "/admin/gpus/modelconfig/add/",
)
"""One of each kind, with its scripts and what surrounds the main region. test_accessibility.py looks for
inline styles and scripts in all pages."""


@pytest.mark.django_db(transaction=True)
def test_no_kind_of_page_violates_the_policy(web_browser: WebBrowser) -> None:
    fill(jobs=6)
    group = Group.objects.create(name="some")
    boss = User.objects.create_superuser("boss", password="correct horse")
    wrong = []
    with web_browser.visit(boss) as visit:
        for path in (*PAGES, reverse("admin:auth_group_change", args=[group.pk])):
            visit.go(path)
            wrong += [f"{path}: {one}" for one in visit.complaints if "404 (Not Found)" not in one]
            visit.complaints.clear()
    assert wrong == [], "\n".join(wrong)


def open_up(visit: Visit, path: str) -> Any:
    page = visit.go(path)
    wait_until(page, "document.body.dataset.firstTab !== undefined")
    return page


@pytest.mark.django_db(transaction=True)
def test_unfolds_alpine_features_work(web_browser: WebBrowser) -> None:
    fill(jobs=6)
    boss = User.objects.create_superuser("boss", password="correct horse")
    with web_browser.visit(boss) as visit:
        page = open_up(visit, reverse("admin:jobs_job_changelist"))
        page.keyboard.press("t")  # the shortcut of the search in the side bar
        page.locator("#nav-filter").press_sequentially("serv")
        page.wait_for_selector("#search-results a:has-text('Servers')")
        page.keyboard.press("ArrowDown")
        page.keyboard.press("Escape")
        assert page.input_value("#nav-filter") == ""
        page.click("span.material-symbols-outlined:has-text('dock_to_right') >> visible=true")
        assert page.evaluate("localStorage.getItem('sidebarDesktopOpen')") == "0"
        page.reload()
        wait_until(page, "Alpine.$data(document.body).sidebarDesktopOpen === false")
        page.evaluate("Alpine.$data(document.documentElement).switchTheme('dark')")
        page.wait_for_selector("html.dark")
        page.click("input.action-select >> nth=0")
        wait_until(page, "document.querySelector('#changelist-actions').style.width.endsWith('px')")
        visit.assert_quiet()
        page = open_up(visit, reverse("admin:jobs_apikey_add"))
        page.click(".select2-selection >> nth=0")
        page.wait_for_selector(".select2-results__option:has-text('acme')")
        page.click(".select2-results__option:has-text('acme')")
        visit.assert_quiet()
        page = open_up(visit, reverse("admin:auth_user_change", args=[boss.pk]))
        assert page.evaluate("Alpine.$data(document.body).activeTab") is not None
        visit.assert_quiet()


@pytest.mark.django_db(transaction=True)
def test_the_api_documentation_works_under_the_policy(web_browser: WebBrowser) -> None:
    with web_browser.visit() as visit:
        page = visit.go("/api/v1/docs")
        page.click("[data-path='/api/v1/queue/submit']")
        page.wait_for_selector(".opblock.is-open .opblock-body")
        visit.assert_quiet()


@pytest.mark.django_db(transaction=True)
def test_a_script_inside_a_page_does_not_run(web_browser: WebBrowser) -> None:
    """The browser enforces the policy, so the other tests would see violations."""
    with web_browser.visit() as visit:
        page = visit.go("/admin/login/")
        page.evaluate(
            "document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=\"window.bad = 1\">')"
        )
        page.evaluate(SCRIPT)
        page.wait_for_timeout(200)
        assert page.evaluate("window.bad") is None
        assert any("Content Security Policy" in one for one in visit.complaints)
