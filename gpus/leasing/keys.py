"""Where a fleet's keys begin. All carry the fleet's hash tag, so that one node of a cluster holds them.

The names behind the prefix are made by `lua/includes/keys.lua`; docs/leasing.md says what each key holds.
"""

from __future__ import annotations

LAYOUT = 6
"""Of the keys that this code reads and writes; raised when they change their meaning. Each layout has an
index of its own, one of which is in use (docs/leasing.md, "One layout in use")."""


def prefix(fleet: str, layout: int = 0) -> str:
    """``gpuq:{main}:v6:``; layout: 0 for this code's own."""
    if not fleet or any(mark in fleet for mark in "{}:"):
        raise ValueError(f"a fleet's name must not be empty or hold braces or colons, it is {fleet!r}")
    return f"gpuq:{{{fleet}}}:v{layout or LAYOUT}:"
