"""A model whose code is slow to import."""

from __future__ import annotations

from typing import Any

from tests.gpu_host.local.models import wait_in

wait_in("importing")


def run(payload: Any) -> Any:
    return payload
