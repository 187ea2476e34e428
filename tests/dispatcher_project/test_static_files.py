"""Static files are served from where their packages have them."""

from __future__ import annotations

import warnings

from django.http import HttpResponse
from whitenoise.middleware import WhiteNoiseMiddleware


def test_static_files_are_found_without_warnings(settings) -> None:
    settings.WHITENOISE_AUTOREFRESH = False  # as in production
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        middleware = WhiteNoiseMiddleware(lambda request: HttpResponse())
    assert "/static/admin_ui/favicon.svg" in middleware.files
