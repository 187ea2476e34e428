"""The public address with a path, whatever it ends with."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from foundation.public_url import public_url


@pytest.mark.parametrize("given", ["https://gpu.example", "https://gpu.example/"])
def test_a_slash_at_its_end_is_not_doubled(settings: Any, given: str) -> None:
    settings.DISPATCHER = replace(settings.DISPATCHER, public_url=given)
    assert public_url("/api/v1/tasks") == "https://gpu.example/api/v1/tasks"
    assert public_url("/store", base="https://files.example/") == "https://files.example/store"
    assert public_url("/store", base="") == "https://gpu.example/store"
