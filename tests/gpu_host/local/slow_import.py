"""A model whose code takes its time to be imported."""

from __future__ import annotations

from typing import Any

from tests.gpu_host.local.models import wait_in

wait_in("importing")


def run(payload: Any) -> Any:
    return payload
