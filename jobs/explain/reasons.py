"""What a reason is, and those that a letter in the line stands for. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Reason:
    """code: stable. evidence: what it was decided by. change: what would change it."""

    code: str
    message: str
    change: str
    evidence: dict[str, Any] = field(default_factory=dict)


HELD = {
    "m": ("tenant_cap", "Its tenant runs as many jobs as it may at once.", "One of its jobs ends."),
    "q": (
        "quota",
        "Its tenant has used its GPU-seconds for today.",
        "The quota begins anew at midnight UTC, or an operator raises it.",
    ),
    "r": (
        "rate",
        "Its tenant starts jobs as fast as it may.",
        "Time passes, or an operator raises the rate.",
    ),
}
"""By the letter of `parked` in the line. ``p`` is the operator's pause, which the pauses say."""
