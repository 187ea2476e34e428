"""A slot's holder and its follower."""

from __future__ import annotations

from gpus.protocol import Lease
from tests.gpus.leasing.lease_harness import WORKER, LeaseHarness


def reserve(harness: LeaseHarness, holder: Lease, attempt: str = "next", **how: object) -> Lease | None:
    options = {"worker": WORKER, **how}
    return harness.leases.reserve(holder.ref, next_attempt_id=attempt, **options)  # type: ignore[arg-type]


def followed(harness: LeaseHarness, *jobs: str, **ticket: object) -> tuple[Lease, Lease]:
    """A slot's holder and its follower, of three jobs that came; one waits."""
    harness.server()
    harness.push(*(jobs or ("j1", "j2", "j3")), **ticket)
    holder = harness.must_claim("first")
    follower = reserve(harness, holder)
    assert follower is not None
    return holder, follower


def state(harness: LeaseHarness) -> tuple[str, str | None, str | None]:
    view = harness.leases.slots("s1")[0]
    return view.state, view.attempt_id, view.follower_id
