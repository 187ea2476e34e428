"""Faults of a page for people who do not see it, and the pages."""

from __future__ import annotations

import re
from collections.abc import Iterator

from django.contrib import admin
from django.urls import URLPattern, URLResolver, get_resolver, reverse

from admin_ui import ADMIN_PATH

NO_PAGES = frozenset(
    f"/{ADMIN_PATH}/{path}"
    for path in (
        *("logout/", "jsi18n/", "autocomplete/", "search/", "login/", "now/", "pulse/", "pause/", "resume/"),
        *("flower/", "jobs/callback/deliveries/", "admin_ui/deadletter/groups/", "jobs/job/bulk/step/"),
    )
)
"""Routes without arguments that are fragments, answers to a button, or another program's pages."""


PHONE = (390, 844)


INLINE = re.compile(
    r"<style\b[^>]*>|<script\b(?![^>]*(?:\bsrc=|application/json))[^>]*>"
    r"|<[a-z][^>]*\s(?:style|on[a-z]+)=[^>]*>"
)
"""What the Content-Security-Policy forbids."""


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


def faults_of(page: str) -> list[str]:
    """Return what a page lacks, or has and may not have."""
    marks = ('<main id="main-content"', 'href="#main-content"', "<h1")
    counts = {mark: len(re.findall(re.escape(mark), page)) for mark in marks}
    return [f"{mark} {count} times" for mark, count in counts.items() if count != 1] + INLINE.findall(page)
