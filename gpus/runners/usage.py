"""What a GPU server counted for a run: numbers by name, read with distrust."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import islice
from typing import Any

MOST_NAMES = 64
MAX_NAME = 64


def numbers_of(said: Any) -> dict[str, Any] | None:
    """Its finite numbers, also those one level down (``prompt_tokens_details``); None: there are none. Texts
    are left out: tenants read this, and operators sum it."""
    found = _numbers(said, deeper=True)
    return found or None


def _numbers(said: Any, *, deeper: bool) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in islice(said.items(), MOST_NAMES) if isinstance(said, Mapping) else ():
        if not isinstance(name, str) or len(name) > MAX_NAME:
            continue
        if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value):
            found[name] = value
        elif deeper and (below := _numbers(value, deeper=False)):
            found[name] = below
    return found
