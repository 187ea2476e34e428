"""What a request's head may hold: so many headers, and a URL of so many bytes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from foundation.http_api.problems import MEDIA_TYPE, Problem

from .limits import WebLimits

Application = Callable[[Any, Any, Any], Awaitable[None]]


def within_heads(application: Application, limits: WebLimits) -> Application:
    """application: as ASGI has it. Its head as a whole is bounded by the protocol."""

    async def bounded(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            if len(scope["headers"]) > limits.headers:
                detail = f"The request has more than {limits.headers} headers."
                return await _send(send, Problem(431, "head_too_large", detail))
            if len(scope["raw_path"]) + len(scope["query_string"]) > limits.url_bytes:
                detail = f"The URL has more than {limits.url_bytes} bytes."
                return await _send(send, Problem(414, "url_too_long", detail))
        return await application(scope, receive, send)

    return bounded


async def _send(send: Any, problem: Problem) -> None:
    content = problem.as_bytes()
    headers = {"content-type": MEDIA_TYPE, "content-length": str(len(content)), "connection": "close"}
    lines = [(name.encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": problem.status, "headers": lines})
    await send({"type": "http.response.body", "body": content, "more_body": False})
