"""The security headers of every answer: what a browser may do with it.

The same for every page, since no page of ours holds a script or a style sheet, and none needs a nonce.
`SecurityHeaders` is Django's middleware, which a WSGI server has too. `SecureAnswers` adds the same headers
to the answers that the ASGI application sends without Django: submits, event streams, `/livez`, refusals."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Awaitable, Callable, Sequence
from hashlib import sha256
from typing import Any

from django.conf import settings
from django.http import HttpRequest, HttpResponse

from admin_ui import FLOWER_PREFIX

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
