"""Static files are found without warnings, and sent in few blocks."""

from __future__ import annotations

import warnings
from math import ceil

from django.http import HttpResponse
from django.test import RequestFactory

from dispatcher_project.web.static_files import BLOCK_BYTES, StaticFiles

LARGE = "/static/drf_spectacular_sidecar/redoc/bundles/redoc.standalone.js.map"


def test_static_files_are_found_without_warnings(settings) -> None:
    settings.WHITENOISE_AUTOREFRESH = False  # as in production
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        middleware = StaticFiles(lambda request: HttpResponse())
    assert "/static/admin_ui/favicon.svg" in middleware.files


def test_a_large_file_is_sent_in_few_blocks(rf: RequestFactory, settings) -> None:
    """Each one is a step of the event loop."""
    assert f"{StaticFiles.__module__}.{StaticFiles.__name__}" in settings.MIDDLEWARE
    response = StaticFiles(lambda request: HttpResponse())(rf.get(LARGE))
    size = int(response.headers["Content-Length"])
    blocks = list(map(len, response))
    assert sum(blocks) == size > 3_500_000
    assert len(blocks) == ceil(size / BLOCK_BYTES)
