"""Leases that expire."""

from __future__ import annotations

from tests.gpus.leasing.lease_harness import LeaseHarness


def expire(harness: LeaseHarness, seconds: float = 16) -> None:
    """Time passes and the sweep ticks, as it does."""
    for _ in range(int(seconds / 2)):
        harness.leases.expired()
        harness.wait(2)
