"""Leases that expire."""

from __future__ import annotations

from tests.gpus.leasing.rig import Rig


def expire(rig: Rig, seconds: float = 16) -> None:
    """Time passes and the sweep ticks, as it does."""
    for _ in range(int(seconds / 2)):
        rig.leases.expired()
        rig.wait(2)
