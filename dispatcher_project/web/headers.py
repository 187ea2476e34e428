"""Checks of request headers (cookies that take seconds to parse, charsets that raise), and the security
headers of every response. These are the same for all pages: no page contains a script or a style sheet, so
none needs a nonce.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable
from hashlib import sha256
from typing import Any

from django.conf import settings
from django.core.handlers.wsgi import WSGIHandler, WSGIRequest
from django.http import HttpRequest, HttpResponse

from admin_ui import FLOWER_PREFIX
from dispatcher_project.web.request_limits import forget_long_values
from foundation.http_api.problems import Problem
from jobs.api.errors import answer

MAX_ESCAPES = 32
"""Most backslashes in quoted cookies: Python before 3.11.10 and 3.12.6 parses them in quadratic time
(CVE-2024-7592); 60 KB took 20 s."""


class CheckedHeaders:
    """Django middleware that refuses expensive cookies before they are parsed."""

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
    """Decodes query and form as UTF-8. Django would use the client's charset while it builds the request,
    where `punycode`, `zlib` and others raise before any middleware runs."""

    @property
    def encoding(self) -> None:
        return None  # settings.DEFAULT_CHARSET

    @encoding.setter
    def encoding(self, charset: str) -> None:
        pass


class Utf8Handler(WSGIHandler):
    """Django's WSGI application with `Utf8Request`; frees long values after each request."""

    request_class = Utf8Request

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Any:
        response = super().__call__(environ, start_response)
        forget_long_values(int(environ.get("CONTENT_LENGTH") or 0))
        return response


# -- the security headers ------------------------------------------------------------------

_FLOWERS_SCRIPTS = tuple(f"\nvar autorefresh = {value};\n" for value in (1, 0))
"""Flower's only inline script (workers.html), as its server sends it: without indentation."""
PERMISSIONS = ", ".join(
    f"{feature}=()"
    for feature in ("accelerometer", "camera", "display-capture", "geolocation", "gyroscope", "hid",
                    "microphone", "midi", "payment", "serial", "usb")
)  # fmt: skip


def policy(*, scripts: str = "'self'") -> str:
    """Return a Content-Security-Policy. scripts: the sources of `script-src`."""
    return "; ".join(
        (
            "default-src 'none'",
            f"script-src {scripts}",
            "style-src 'self'",
            "img-src 'self' data:",
            "media-src 'self' data:",
            "font-src 'self'",
            "connect-src 'self'",
            "form-action 'self'",
            "frame-ancestors 'none'",
            "base-uri 'none'",
        )
    )


def _hash(script: str) -> str:
    return f"'sha256-{b64encode(sha256(script.encode()).digest()).decode()}'"


STRICT = policy()
OF_FLOWER = policy(scripts=" ".join(["'self'", *map(_hash, _FLOWERS_SCRIPTS)]))


class SecurityHeaders:
    """Django middleware for Content-Security-Policy and Permissions-Policy. Django's own sends the others:
    nosniff, Referrer-Policy, COOP, HSTS, X-Frame-Options."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self._get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        answer = self._get_response(request)
        is_flowers = request.path_info.startswith(f"/{FLOWER_PREFIX}/")
        # tenants' media (admin_ui/pages/job.py) have a stricter policy
        answer.headers.setdefault("Content-Security-Policy", OF_FLOWER if is_flowers else STRICT)
        answer.headers["Permissions-Policy"] = PERMISSIONS
        return answer


def security_headers(*, over_https: bool) -> list[tuple[bytes, bytes]]:
    """Return the same headers for responses that the ASGI application sends without Django."""
    named = {
        "content-security-policy": STRICT,
        "permissions-policy": PERMISSIONS,
        "x-content-type-options": "nosniff",
        "referrer-policy": settings.SECURE_REFERRER_POLICY,
        "cross-origin-opener-policy": settings.SECURE_CROSS_ORIGIN_OPENER_POLICY,
        "x-frame-options": settings.X_FRAME_OPTIONS,
    }
    if over_https and settings.SECURE_HSTS_SECONDS:
        named["strict-transport-security"] = f"max-age={settings.SECURE_HSTS_SECONDS}"
    return [(name.encode(), value.encode()) for name, value in named.items()]
