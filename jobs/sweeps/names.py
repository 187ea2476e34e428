"""Names that are no sweep's own."""

from __future__ import annotations

TICK = "tick"
"""All sweeps that are due."""
