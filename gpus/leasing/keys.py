"""Where a fleet's keys begin. All carry the fleet's hash tag, so that one node of a cluster holds them.

The names behind the prefix are made by `lua/includes/keys.lua`; docs/leasing.md says what each key holds.
"""

from __future__ import annotations

LAYOUT = 6
"""Raised when keys change their meaning: old and new workers then use different indexes, each rebuilt."""


def prefix(fleet: str) -> str:
    """``gpuq:{main}:v6:``"""
    if not fleet or any(mark in fleet for mark in "{}:"):
        raise ValueError(f"a fleet's name must not be empty or hold braces or colons, it is {fleet!r}")
    return f"gpuq:{{{fleet}}}:v{LAYOUT}:"
