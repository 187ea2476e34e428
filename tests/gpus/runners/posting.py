"""A POST through the transport, and a server that answers it politely."""

from __future__ import annotations

from typing import Any

from gpus.runners.base import Response
from gpus.runners.transport import HttpTransport

LONG = 60.0


def post(transport: HttpTransport, url: str, body: bytes | None = b"{}", **options: Any) -> Response:
    defaults: dict[str, Any] = {
        "headers": {},
        "connect_timeout_seconds": 5.0,
        "deadline_seconds": LONG,
        "max_bytes": 1_000_000,
    }
    return transport.request("POST", url, body=body, **(defaults | options))


def polite(visit):
    while visit.read_request():
        visit.answer()
