"""Responses that bypass Django have the same security headers as Django's."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest
from django.test import Client

from dispatcher_project.asgi import make_application
from dispatcher_project.web.asgi_gateway import AsgiGateway

NAMES = (
    "content-security-policy",
    "permissions-policy",
    "x-content-type-options",
    "referrer-policy",
    "cross-origin-opener-policy",
    "x-frame-options",
)


def headers_of(application: Any, path: str, scheme: str = "http") -> list[tuple[str, str]]:
    messages: list[Any] = []

    async def send(message: Any) -> None:
        messages.append(message)

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    scope = {
        "type": "http",
        "scheme": scheme,
        "path": path,
        "method": "GET",
        "headers": [],
        "query_string": b"",
    }
    asyncio.run(application(scope, receive, send))
    return [(name.decode(), value.decode()) for name, value in messages[0]["headers"]]


@pytest.mark.django_db
def test_livez_has_the_headers_of_a_page(client: Client) -> None:
    page = client.get("/nowhere")
    found = headers_of(make_application(), "/livez")
    assert {name: page[name] for name in NAMES} == {name: value for name, value in found if name in NAMES}
    assert len(found) == len(dict(found))


def test_a_response_keeps_its_own_header() -> None:
    async def own(scope: Any, receive: Any, send: Any) -> None:
        await send(
            {"type": "http.response.start", "status": 200, "headers": [(b"content-security-policy", b"own")]}
        )

    found = headers_of(AsgiGateway(own, lambda: cast("Any", None)), "/")
    assert [value for name, value in found if name == "content-security-policy"] == ["own"]


@pytest.mark.parametrize(
    ("scheme", "seconds", "sent"), [("https", 60, "max-age=60"), ("http", 60, None), ("https", 0, None)]
)
def test_hsts_is_sent_over_https_only(settings: Any, scheme: str, seconds: int, sent: str | None) -> None:
    settings.SECURE_HSTS_SECONDS = seconds
    found = dict(headers_of(make_application(), "/livez", scheme))
    assert found.get("strict-transport-security") == sent
