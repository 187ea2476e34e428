"""What a browser may do with an answer: the same for every page, since no page of ours holds a script or a
style sheet, and none needs a nonce."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable
from hashlib import sha256

from django.http import HttpRequest, HttpResponse

from .flower_address import FLOWER_PREFIX

_OWN_SCRIPTS_OF_FLOWER = tuple(f"\nvar autorefresh = {value};\n" for value in (1, 0))
"""The one script inside a page of Flower's (workers.html), as its server sends it: without indentation."""


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
PERMISSIONS = ", ".join(
    f"{feature}=()"
    for feature in ("accelerometer", "camera", "display-capture", "geolocation", "gyroscope", "hid",
                    "microphone", "midi", "payment", "serial", "usb")
)  # fmt: skip


class SecurityHeaders:
    """Django's own middleware sends the others: nosniff, Referrer-Policy, COOP, HSTS, X-Frame-Options."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self._get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        answer = self._get_response(request)
        is_flowers = request.path_info.startswith(f"/{FLOWER_PREFIX}/")
        # what tenants made (admin_ui/job_detail.py) has a stricter one
        answer.headers.setdefault("Content-Security-Policy", OF_FLOWER if is_flowers else STRICT)
        answer.headers["Permissions-Policy"] = PERMISSIONS
        return answer
