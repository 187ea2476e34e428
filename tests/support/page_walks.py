"""All pages of a list."""

from __future__ import annotations

from typing import Any

from django.test import Client

import dispatcher_project.urls  # noqa: F401  registers the pages


def walked(client: Client, address: str) -> list[Any]:
    """All rows of a list, page by page."""
    rows: list[Any] = []
    while address:
        answer = client.get(address)
        assert answer.status_code == 200
        listed = answer.context["cl"]
        rows += listed.result_list
        after = getattr(listed, "after_url", "")
        address = address.partition("?")[0] + after if after else ""
    return rows
