"""A long body is taken in only once its sender is known to be welcome, and never by one of the few threads.

The async layer (`dispatcher_project.web.asgi_gateway`) lets the view begin without it. The view turns away
who may not send, by key, token or length; where it reads the body, the request ends with 100 Continue. This
answer stays in the house: the layer takes the body in and lets the view begin again. So a view does nothing
that lasts before it reads its body.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from foundation.http_api.problems import Problem

LATER_KEY = "dispatcher.body_comes_later"
GO_ON = 100


def require_body(environ: Mapping[str, Any]) -> None:
    """Raises Problem 100 if the body was not taken in yet. Under plain WSGI it always was."""
    if environ.get("asgi.scope", {}).get(LATER_KEY):
        raise Problem(GO_ON, "body_wanted", "Send the body.")
