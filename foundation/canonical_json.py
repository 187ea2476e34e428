"""One text for equal JSON values."""

from __future__ import annotations

import json


def canonical_json(value: object) -> str:
    """One text per value: sorted keys, no white space."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
