"""The name of the tick, in a module without imports: `jobs.sweeps` is imported before models are loaded."""

from __future__ import annotations

TICK = "tick"
"""All sweeps that are due."""
