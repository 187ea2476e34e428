"""A real browser on the real web process, with checks of each page: no browser errors, no request to another
host, no serious finding of axe-core."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client

from dispatcher_project.documentation.screenshot import CHROMIUM

BROWSER = next(filter(None, map(shutil.which, CHROMIUM)), None)
SWITCHES = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-sync"]
DESKTOP, PHONE = (1440, 900), (360, 740)
ON_A_DESK = (False, pytest.param(True, marks=pytest.mark.by_hand))
ON_A_PHONE = (pytest.param(False, marks=pytest.mark.by_hand), True)
"""Values of `phone`: the gate looks at one size, and all pages have their width in test_every_page.py."""
_VENDOR = Path(__file__).parent / "vendor" / "axe"
_RUN_AXE = """async ({region, contrast}) => {
  const options = {resultTypes: ['violations'], preload: false, selectors: false}
  if (region) options.runOnly = ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa']
  if (!contrast) options.rules = {'color-contrast': {enabled: false}}
  const found = await axe.run(region || document, options)
  return found.violations.filter(one => ['serious', 'critical'].includes(one.impact)).map(one =>
    [one.id + ': ' + one.help, ...one.nodes.slice(0, 8).map(node =>
      '    ' + node.html.slice(0, 200) + ' ' + node.failureSummary.replaceAll('\\n', ' '))].join('\\n'))
}"""
_WIDER_THAN_THE_WINDOW = "() => document.documentElement.scrollWidth - document.documentElement.clientWidth"
OUTSIDE = """() => {
  const page = document.documentElement, list = document.querySelector('#result_list')
  if (list && list.scrollWidth > list.parentElement.clientWidth + 1) {
    return [`the list is cut off by ${list.scrollWidth - list.parentElement.clientWidth} px`]
  }
  if (page.scrollWidth <= page.clientWidth) return []
  const isOut = element => element.getBoundingClientRect().right > page.clientWidth + 1
  const isInnermost = element => isOut(element) && ![...element.children].some(isOut)
  const out = [...document.querySelectorAll('body *')].filter(isInnermost).slice(0, 4)
  return [`${page.scrollWidth - page.clientWidth} px`, ...out.map(one => one.outerHTML.slice(0, 200))]
}"""


@dataclass
class Visit:
    """One tab. complaints: console errors and exceptions so far. hosts: all hosts that it sent requests
    to."""

    page: Any
    url: str
    complaints: list[str] = field(default_factory=list)
    hosts: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.page.set_default_timeout(60_000)
        self.page.on("request", self._note_request)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("console", self._note_console)

    def go(self, path: str) -> Any:
        """Returns the page once it is loaded."""
        self.page.goto(self.url + path)
        return self.page

    def assert_sound(self) -> None:
        """Check accessibility, width (on a phone, a part outside the window is hidden), errors and hosts."""
        found = self.serious_findings()
        assert found == [], f"{self.page.url}\n" + "\n".join(found)
        assert self.page.evaluate(_WIDER_THAN_THE_WINDOW) <= 0, f"{self.page.url} is wider than the window"
        self.assert_quiet()

    def serious_findings(self) -> list[str]:
        """Return the serious and critical findings of axe-core."""
        return self.findings_in("")

    def findings_in(self, region: str, *, contrast: bool = True) -> list[str]:
        """Return the serious and critical findings of axe-core's rules for WCAG A and AA in a part of the
        page; of all its rules in the whole page, if the region is empty. contrast: False leaves out the
        dearest rule, that of colours."""
        if not self.page.evaluate("() => 'axe' in window"):
            self.page.evaluate(_axe())
        found: list[str] = self.page.evaluate(_RUN_AXE, {"region": region, "contrast": contrast})
        return found

    def parts_outside_the_window(self) -> list[str]:
        """Return by how many pixels the page, or its list, is wider than its room, and which parts are; empty
        if it is not."""
        parts: list[str] = self.page.evaluate(OUTSIDE)
        return parts

    def resize(self, size: tuple[int, int]) -> None:
        self.page.set_viewport_size({"width": size[0], "height": size[1]})

    def assert_quiet(self) -> None:
        assert self.complaints == []
        assert self.hosts <= {self.url.removeprefix("http://")}

    def _note_request(self, request: Any) -> None:
        if request.url.startswith(("http:", "https:", "ws:", "wss:")):
            self.hosts.add(request.url.split("/")[2])

    def _note_console(self, message: Any) -> None:
        if message.type == "error":
            self.complaints.append(message.text)


@dataclass
class Chromium:
    """A browser, and the event loop that its driver runs in this thread: asyncio runs no other beside it."""

    browser: Any
    loop: asyncio.AbstractEventLoop

    @contextmanager
    def in_use(self) -> Iterator[Any]:
        """Only here the browser can be called, and no other loop can be run."""
        asyncio._set_running_loop(self.loop)
        try:
            yield self.browser
        finally:
            asyncio._set_running_loop(None)


@contextmanager
def running_chromium() -> Iterator[Chromium]:
    """Skip the test where there is none. Driver and browser take 0.7 CPU seconds to start."""
    if BROWSER is None:
        pytest.skip("no chromium on PATH")
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with playwright.sync_playwright() as driver:
        chromium = Chromium(
            driver.chromium.launch(executable_path=BROWSER, args=SWITCHES), asyncio.get_running_loop()
        )
        asyncio._set_running_loop(None)
        yield chromium
        with chromium.in_use():
            chromium.browser.close()
        asyncio._set_running_loop(chromium.loop)  # the driver ends it


@dataclass
class WebBrowser:
    """Opens tabs on one web process."""

    browser: Any
    url: str

    @contextmanager
    def visit(
        self,
        user: User | None = None,
        *,
        size: tuple[int, int] = DESKTOP,
        dark: bool = False,
        scripts: bool = True,
    ) -> Iterator[Visit]:
        """Open a tab, signed in as the user. It is closed at the end, before the database is emptied."""
        context = self.browser.new_context(
            viewport={"width": size[0], "height": size[1]},
            color_scheme="dark" if dark else "light",
            java_script_enabled=scripts,
        )
        try:
            if user is not None:
                context.add_cookies([{"name": "sessionid", "value": _session(user), "url": self.url}])
            yield Visit(context.new_page(), self.url)
        finally:
            context.close()


def wait_until(page: Any, condition: str, *, seconds: float = 60.0) -> None:
    """Wait for a JavaScript expression to be true. Playwright's own `wait_for_function` evaluates inside the
    page, which the Content-Security-Policy forbids."""
    until = time.monotonic() + seconds
    while not page.evaluate(condition):
        assert time.monotonic() < until, f"not within {seconds:g} s: {condition}"
        page.wait_for_timeout(50)


def _session(user: User) -> str:
    client = Client()
    client.force_login(user)
    return client.cookies["sessionid"].value


@cache
def _axe() -> str:
    return (_VENDOR / "axe.min.js").read_text()
