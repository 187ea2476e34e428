"""A request says whether its client is still there, also the second one on a connection."""

from __future__ import annotations

import asyncio
from typing import Any

from dispatcher_project.web.protocol import WebLimits, is_client_gone
from tests.support.servers.serving import WHOLE, answer, serving


def test_a_closed_connection_is_visible_in_the_requests_scope() -> None:
    scopes: list[Any] = []

    async def site(scope: Any, receive: Any, send: Any) -> None:
        scopes.append(scope)
        while len(scopes) == 2 and not is_client_gone(scope):
            await asyncio.sleep(0.01)
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})

    with serving(WebLimits(), site) as served:
        connection = served.connect(send=WHOLE)
        answer(connection)
        connection.sendall(WHOLE)
        served.wait_for(lambda: len(scopes) == 2)
        assert not is_client_gone(scopes[1])
        connection.close()
        served.wait_for(lambda: is_client_gone(scopes[1]), "the end of the second request")
    assert not is_client_gone({}), "another server says nothing"
