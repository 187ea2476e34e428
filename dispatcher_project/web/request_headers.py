"""Headers that no view may parse as they come: cookies whose parsing takes seconds, charsets that raise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.conf import settings
from django.core.handlers.wsgi import WSGIHandler, WSGIRequest
from django.http import HttpRequest, HttpResponse

from dispatcher_project.web.request_bodies import forget_long_values
from foundation.http_api.problems import Problem
from jobs.api.errors import answer

MAX_ESCAPES = 32
"""Backslashes in quoted cookies. Python before 3.11.10 and 3.12.6 reads them in quadratic time
(CVE-2024-7592): 60 KB took 20 s."""


class CheckedHeaders:
    """Django middleware: refuses costly cookies before any code parses them."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self._get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        problem = _refused_cookie(request.META.get("HTTP_COOKIE", ""))
        if problem is not None:
            return answer(problem)
        return self._get_response(request)


def _refused_cookie(cookie: str) -> Problem | None:
    most = settings.DISPATCHER.web_cookie_bytes
    if len(cookie) > most:
        return Problem(431, "cookies_too_large", f"The Cookie header has more than {most} bytes.")
    if '"' in cookie and cookie.count("\\") > MAX_ESCAPES:
        detail = f"The Cookie header has more than {MAX_ESCAPES} backslashes in quoted values."
        return Problem(400, "bad_cookies", detail)
    return None


class Utf8Request(WSGIRequest):
    """Query and form are UTF-8. Django would decode them by the client's charset while it makes the request:
    `punycode`, `zlib` and others raise there, before any middleware."""

    @property
    def encoding(self) -> None:
        return None  # settings.DEFAULT_CHARSET

    @encoding.setter
    def encoding(self, charset: str) -> None:
        pass


class Utf8Handler(WSGIHandler):
    """The WSGI application of the site."""

    request_class = Utf8Request

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Any:
        response = super().__call__(environ, start_response)
        forget_long_values(int(environ.get("CONTENT_LENGTH") or 0))
        return response
