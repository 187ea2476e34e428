"""The lease of a committed end is removed from Redis, and does not come back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import pytest

from gpus.leasing.contract import Leases
from gpus.protocol import Lease, LeaseRef
from jobs.execution.completion import Completion, EndWritten
from jobs.transitions import Ended
from tests.support.fakes import make_ports

pytestmark = pytest.mark.django_db


class RefilledLeases:
    """An index that is being rebuilt: a renewal announces leases that it does not have."""

    def __init__(self) -> None:
        self.ends: set[LeaseRef] = set()
        self.before_renewal: Callable[[], object] = lambda: None

    def renew(self, worker: str, leases: Sequence[Lease], ending: Sequence[Lease], followers: Any) -> Any:
        self.before_renewal()
        self.ends |= {lease.ref for lease in ending}
        return []

    def confirm_ends(self, refs: Sequence[LeaseRef]) -> tuple[()]:
        self.ends -= set(refs)
        return ()


def test_an_end_whose_renewal_arrives_after_it_was_settled_is_settled_again() -> None:
    index = RefilledLeases()
    leases = cast("Leases", index)
    settlement = Completion(make_ports(leases), name="w", on_lost=lambda ref: None)
    lease = Lease(
        pool="m", slot="gpu-1/0", job_id="J", attempt_id="A", epoch=1, model="m", tenant="1",
        priority=5, fence=1, leased_at_ms=0, estimate_seconds=1.0,
    )  # fmt: skip
    keeper = settlement.keeper
    keeper.add(lease)
    keeper.mark_ending(lease.ref)
    index.before_renewal = lambda: settlement._after_commit([EndWritten(Ended(won=True), leases, lease.ref)])
    keeper.step(settlement.ports.clock.monotonic())
    assert index.ends == {lease.ref}
    settlement.retry_releases()
    assert index.ends == set()
    assert (keeper.held(), settlement._unconfirmed) == (0, {})
