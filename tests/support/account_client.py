"""A test client with a key."""

from __future__ import annotations

from typing import Any


def account_client(key: str) -> Any:
    from rest_framework.test import APIClient

    client = APIClient(raise_request_exception=False)
    client.credentials(HTTP_AUTHORIZATION=f"Bearer {key}")
    return client
