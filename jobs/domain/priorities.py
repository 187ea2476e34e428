"""Priorities as clients write them; bands share slots by `gpus/leasing/lua/includes/shares.lua`."""

from __future__ import annotations

HIGHEST, DEFAULT, LOWEST = 1, 5, 9
PRIORITY_OF_TRUE = 2


def read_priority(value: int | bool | None) -> int:
    """1..9, 1 first; ``true`` (the founding API's flag) is 2, ``false`` and nothing are 5."""
    if value is None or value is False:
        return DEFAULT
    if value is True:
        return PRIORITY_OF_TRUE
    if not HIGHEST <= value <= LOWEST:
        raise ValueError(f"priority is a number from {HIGHEST} to {LOWEST}, or a boolean")
    return value
