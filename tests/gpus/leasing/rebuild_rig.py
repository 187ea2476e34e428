"""An index that was lost while two leases were held."""

from __future__ import annotations

import pytest

from gpus.protocol import Lease
from tests.gpus.leasing.rig import POOL, Rig


def lose_index(rig: Rig) -> None:
    """As FLUSHALL does, without hurting other tests on the same server."""
    rig.client.delete(*(rig.prefix + name for name in rig.all_keys()))


def begin(rig: Rig) -> None:
    assert rig.leases.begin_rebuild("one")
    assert rig.leases.wipe("one")


@pytest.fixture
def lost(rig: Rig) -> tuple[Rig, Lease, Lease]:
    """An index that was lost while one job ran and another one's end was not committed yet."""
    rig.server(slots=2)
    rig.push("running", "ending")
    running, ending = rig.must_claim(), rig.must_claim()
    rig.release(ending)
    lose_index(rig)
    return rig, running, ending


def database_lease(attempt: str = "att", *, slot: str = "s1/0", job: str = "job", at_s: int = 0) -> Lease:
    """As the rebuild makes it from a live attempt's row."""
    at_ms = 1_700_000_000_000 + at_s * 1000
    return Lease(POOL, slot, job, attempt, 1, "flux", "t1", 5, at_ms * 1000, at_ms, 0.0)
