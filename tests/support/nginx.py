"""The files of nginx, and what they name."""

from __future__ import annotations

import json
from typing import Any


async def mirror(scope: Any, receive: Any, send: Any) -> None:
    """Answers with what the application is told of a request."""
    length, more = 0, True
    while more:
        message = await receive()
        length += len(message.get("body", b""))
        more = message.get("more_body", False)
    headers = {name.decode(): value.decode() for name, value in scope["headers"]}
    told = {"client": scope["client"][0], "scheme": scope["scheme"], "headers": headers, "length": length}
    content = json.dumps(told).encode()
    lines = [(b"content-length", str(len(content)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": lines})
    await send({"type": "http.response.body", "body": content, "more_body": False})


FILES = ("/store/a/1/0?signature=x", "/api/v1/tasks/cog/key/film.mp4")
