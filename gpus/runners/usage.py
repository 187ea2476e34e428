"""The usage that a run reports, such as tokens. Standard library only: the process of a model imports it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import islice
from typing import Any

MAX_NAMES = 64
MAX_NAME = 64


def usage_in(value: Any) -> dict[str, Any] | None:
    """The counts that an answer or a result has under ``usage``, or None."""
    return numeric_fields(value.get("usage")) if isinstance(value, Mapping) else None


def numeric_fields(parsed: Any) -> dict[str, Any] | None:
    """The finite numbers of a JSON object and one level below (``prompt_tokens_details``), or None.

    Texts are left out, because tenants read this and operators sum it.
    """
    found = _numbers(parsed, deeper=True)
    return found or None


def _numbers(parsed: Any, *, deeper: bool) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in islice(parsed.items(), MAX_NAMES) if isinstance(parsed, Mapping) else ():
        if not isinstance(name, str) or len(name) > MAX_NAME:
            continue
        if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value):
            found[name] = value
        elif deeper and (below := _numbers(value, deeper=False)):
            found[name] = below
    return found
