"""The admin's middleware: allowed hosts, session limits and security headers.

What a browser may do with an answer is the same for every page, since no page of ours holds a script or a
style sheet, and none needs a nonce. `SecurityHeaders` is Django's middleware, which a WSGI server has too.
`SecureAnswers` adds the same headers to the answers that the ASGI application sends without Django: submits,
event streams, `/livez`, refusals."""

from __future__ import annotations

import time
from base64 import b64encode
from collections.abc import Awaitable, Callable, Sequence
from hashlib import sha256
from typing import Any

from django.conf import settings
from django.contrib.auth import logout, user_logged_in
from django.dispatch import receiver
from django.http import Http404, HttpRequest, HttpResponse
from django.http.request import split_domain_port, validate_host

from admin_ui.pages.flower_address import FLOWER_PREFIX
from jobs.api.errors import not_found

BEGAN, SEEN = "signed_in_at", "seen_at"
"""In the session: Unix seconds."""
NOTE_SECONDS = 60.0
"""A click is written down this often at most."""
_OWN_SCRIPTS_OF_FLOWER = tuple(f"\nvar autorefresh = {value};\n" for value in (1, 0))
"""The one script inside a page of Flower's (workers.html), as its server sends it: without indentation."""
PERMISSIONS = ", ".join(
    f"{feature}=()"
    for feature in ("accelerometer", "camera", "display-capture", "geolocation", "gyroscope", "hid",
                    "microphone", "midi", "payment", "serial", "usb")
)  # fmt: skip
_Message = dict[str, Any]
_Receive = Callable[[], Awaitable[Any]]
_Send = Callable[[Any], Awaitable[None]]
_Application = Callable[[dict[str, Any], _Receive, _Send], Awaitable[None]]


class AdminHosts:
    """404 for the admin's path under a name that DISPATCHER_ADMIN_HOSTS does not have."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self._get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        hosts, path = settings.DISPATCHER.admin_hosts, settings.DISPATCHER.admin_path
        if hosts and f"{request.path_info}/".startswith(f"/{path}/"):
            name, _ = split_domain_port(request.get_host())
            if not validate_host(name, hosts):
                return not_found(request, Http404())  # type: ignore[return-value]
        return self._get_response(request)


class SessionLimits:
    """Signs out who signed in too long ago, or did nothing for too long."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self._get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        if settings.SESSION_COOKIE_NAME in request.COOKIES and request.user.is_authenticated:
            self._limit(request)
        return self._get_response(request)

    def _limit(self, request: HttpRequest) -> None:
        now, most = time.time(), settings.DISPATCHER
        began = request.session.setdefault(BEGAN, now)
        seen = request.session.setdefault(SEEN, began)
        if not (0 <= now - began <= most.session_seconds and now - seen <= most.session_idle_seconds):
            logout(request)
        elif now - seen >= min(NOTE_SECONDS, most.session_idle_seconds / 4) and is_click(request):
            request.session[SEEN] = now


def is_click(request: HttpRequest) -> bool:
    """Return False for requests that a page sends by itself: its event stream and its refreshes."""
    is_stream = "text/event-stream" in request.headers.get("Accept", "")
    refreshes = request.method == "GET" and "HX-Request" in request.headers
    is_data = request.headers.get("X-Requested-With") == "XMLHttpRequest"  # of Flower's tables
    return not (is_stream or refreshes or is_data)


@receiver(user_logged_in, dispatch_uid="admin_ui.middleware")
def _begin(sender: Any, request: HttpRequest | None, **_: Any) -> None:
    if request is not None:
        now = time.time()
        request.session[BEGAN], request.session[SEEN] = now, now
        request.session.clear_expired()


def policy(*, scripts: str = "'self'") -> str:
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
OF_FLOWER = policy(scripts=" ".join(["'self'", *map(_hash, _OWN_SCRIPTS_OF_FLOWER)]))


class SecurityHeaders:
    """Django's own middleware sends the others: nosniff, Referrer-Policy, COOP, HSTS, X-Frame-Options."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self._get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        answer = self._get_response(request)
        is_flowers = request.path_info.startswith(f"/{FLOWER_PREFIX}/")
        # what tenants made (admin_ui/pages/job.py) has a stricter one
        answer.headers.setdefault("Content-Security-Policy", OF_FLOWER if is_flowers else STRICT)
        answer.headers["Permissions-Policy"] = PERMISSIONS
        return answer


class SecureAnswers:
    """ASGI middleware: adds the headers to every answer that lacks them. The settings are read once."""

    def __init__(self, application: _Application) -> None:
        self.application = application
        self._headers = _constant_headers()
        seconds = settings.SECURE_HSTS_SECONDS
        hsts = [(b"strict-transport-security", f"max-age={seconds}".encode())] if seconds else []
        self._headers_over_https = [*self._headers, *hsts]

    async def __call__(self, scope: dict[str, Any], receive: _Receive, send: _Send) -> None:
        if scope["type"] != "http":
            await self.application(scope, receive, send)
            return
        added = self._headers_over_https if scope.get("scheme") == "https" else self._headers

        async def send_with_headers(message: _Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": _with(added, message.get("headers", ()))}
            await send(message)

        await self.application(scope, receive, send_with_headers)


def _constant_headers() -> list[tuple[bytes, bytes]]:
    named = {
        "content-security-policy": STRICT,
        "permissions-policy": PERMISSIONS,
        "x-content-type-options": "nosniff",
        "referrer-policy": settings.SECURE_REFERRER_POLICY,
        "cross-origin-opener-policy": settings.SECURE_CROSS_ORIGIN_OPENER_POLICY,
        "x-frame-options": settings.X_FRAME_OPTIONS,
    }
    return [(name.encode(), value.encode()) for name, value in named.items()]


def _with(
    added: Sequence[tuple[bytes, bytes]], headers: Sequence[tuple[bytes, bytes]]
) -> list[tuple[bytes, bytes]]:
    present = {name for name, _ in headers}
    return [*headers, *(header for header in added if header[0] not in present)]
