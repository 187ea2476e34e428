"""What a reason is. Pure."""

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
