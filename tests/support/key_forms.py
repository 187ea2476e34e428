"""The forms of keys."""

from __future__ import annotations

from typing import Any


def keys_form(**values: Any) -> dict[str, Any]:
    return {"api_keys-TOTAL_FORMS": 0, "api_keys-INITIAL_FORMS": 0, **values}
