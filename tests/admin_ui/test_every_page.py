"""Every admin page at two widths: no serious finding of axe-core among the rules of WCAG A and AA, no part
outside the window.

Loading a hundred pages costs a minute of CPU time, so one page is loaded, and the main regions of all others
take the place of its own, as htmx does it. What surrounds them is the same on every page; pages whose scripts
build controls are loaded. Contrast, the dearest rule, is checked where a page has a CSS class that none
before it had."""

from __future__ import annotations

import re
from dataclasses import dataclass

import pytest
from django.contrib.auth.models import User
from django.test import Client

from tests.admin_ui.browser import OUTSIDE, Visit, WebBrowser
from tests.admin_ui.rows import fill
from tests.support.accessibility import PHONE, pages

DESKTOP = (1400, 900)
BUILT_BY_SCRIPTS = ("/admin/auth/user/1/change/", "/admin/jobs/apikey/add/")
"""Pages with select2, and Django's widget of two lists."""
_MAIN = re.compile(r'<main id="main-content".*?</main>', re.DOTALL)
_STYLE_SHEET = re.compile(
    r'<link href="([^"]+\.css[^"]*)" rel="stylesheet"|<link rel="stylesheet" href="([^"]+)"'
)
_CLASSES = re.compile(r'\bclass="([^"]*)"')
_NAMES_OF_FIELDS = ("field-", "column-")
"""Beginnings of classes without a style of their own."""
_ADD_STYLES = """urls => Promise.all(urls.map(url => new Promise((onload, onerror) => {
  const rel = 'stylesheet'
  document.head.append(Object.assign(document.createElement('link'), {rel, href: url, onload, onerror}))
})))"""
_SHOWING = """regions => window.show = number => {
  document.querySelector('#main-content').outerHTML = regions[number]
  const main = document.querySelector('#main-content')
  document.dispatchEvent(new CustomEvent('htmx:load', {detail: {elt: main}}))
  // observers and timers of scripts come first
  return new Promise(resolve => setTimeout(resolve))
}"""
_SHOW = f"async number => {{ await window.show(number); return ({OUTSIDE})() }}"
_SHOW_ALL = f"""async count => {{
  document.body.style.visibility = 'hidden'  // of the same size, and not painted
  const found = []
  for (let number = 0; number < count; number++) {{
    await window.show(number)
    found.push(({OUTSIDE})())
  }}
  return found
}}"""


@dataclass
class Page:
    """A page's main region, its CSS classes and style sheets."""

    path: str
    region: str
    classes: set[str]
    styles: set[str]


@pytest.mark.django_db(transaction=True)
@pytest.mark.long
def test_every_page_is_accessible_and_as_wide_as_the_window(web_browser: WebBrowser) -> None:
    fill(jobs=12)
    boss = User.objects.create_superuser("boss")
    every = read_pages(boss)
    assert len(every) > 80
    found: list[str] = []
    with web_browser.visit(boss, size=DESKTOP) as visit:
        for path in BUILT_BY_SCRIPTS:
            for size in (PHONE, DESKTOP):
                visit.resize(size)
                visit.go(path)
                found += too_wide(visit, path, visit.parts_outside_the_window())
            found += [f"{path}: {one}" for one in visit.findings_in("#main-content")]
        every = [page for page in every if page.path not in BUILT_BY_SCRIPTS]
        visit.go("/admin/jobs/jobtag/")
        visit.page.evaluate(_ADD_STYLES, sorted(set().union(*(page.styles for page in every))))
        visit.page.evaluate(_SHOWING, [page.region for page in every])
        seen: set[str] = set()
        for number, page in enumerate(every):
            found += too_wide(visit, page.path, visit.page.evaluate(_SHOW, number))
            contrast = not page.classes <= seen
            seen |= page.classes
            found += [f"{page.path}: {one}" for one in visit.findings_in("#main-content", contrast=contrast)]
        visit.resize(PHONE)
        for page, parts in zip(every, visit.page.evaluate(_SHOW_ALL, len(every)), strict=True):
            found += too_wide(visit, page.path, parts)
    assert found == [], "\n".join(found)


def read_pages(user: User) -> list[Page]:
    """Return the pages that the user may see."""
    client = Client()
    client.force_login(user)
    read = []
    for path in pages():
        answer = client.get(path, follow=True)
        html = answer.content.decode() if answer.status_code == 200 and not answer.streaming else ""
        if main := _MAIN.search(html):
            classes = {name for names in _CLASSES.findall(main.group()) for name in names.split()}
            read.append(
                Page(
                    path,
                    main.group(),
                    {name for name in classes if not name.startswith(_NAMES_OF_FIELDS)},
                    {first or second for first, second in _STYLE_SHEET.findall(html)},
                )
            )
    return read


def too_wide(visit: Visit, path: str, parts: list[str]) -> list[str]:
    return [f"{path}: wider than {visit.page.viewport_size['width']} px: {' '.join(parts)}"] if parts else []
