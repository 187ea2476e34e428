"""A tenant's quota of GPU-seconds and what is used of it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Quota:
    """GPU-seconds of a tenant's UTC day. left_seconds: of the day."""

    used: float
    limit: float
    left_seconds: float

    @property
    def is_exhausted(self) -> bool:
        return self.used >= self.limit
