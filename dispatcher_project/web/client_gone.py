"""Tells a request that waited for its turn whether its client has closed the connection."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

GONE_KEY = "dispatcher.client_gone"
"""In a request's scope: returns whether its connection is closed. Put there by
`dispatcher_project.web.protocol`; another server says nothing."""


def is_client_gone(scope: Mapping[str, Any]) -> bool:
    is_gone: Callable[[], bool] | None = scope.get(GONE_KEY)
    return is_gone is not None and is_gone()
