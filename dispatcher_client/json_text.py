"""Reads JSON that something else wrote: a server, a proxy, a file."""

from __future__ import annotations

import json
from typing import Any


def read_json(text: str | bytes) -> Any:
    """Raises ValueError, also where it is nested too deep for Python's own reader."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deep") from None
