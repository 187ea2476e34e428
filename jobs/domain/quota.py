"""A tenant's daily quota of GPU-seconds and its use."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Quota:
    """used, limit: GPU-seconds in the current UTC day. left_seconds: time until the day ends."""

    used: float
    limit: float
    left_seconds: float

    @property
    def is_exhausted(self) -> bool:
        return self.used >= self.limit
