"""A slot's holder and its follower."""

from __future__ import annotations

from gpus.protocol import Lease
from tests.gpus.leasing.rig import WORKER, Rig


def reserve(rig: Rig, holder: Lease, attempt: str = "next", **how: object) -> Lease | None:
    options = {"worker": WORKER, **how}
    return rig.leases.reserve(holder.ref, next_attempt_id=attempt, **options)  # type: ignore[arg-type]


def followed(rig: Rig, *jobs: str, **ticket: object) -> tuple[Lease, Lease]:
    """A slot's holder and its follower, of three jobs that came; one waits."""
    rig.server()
    rig.push(*(jobs or ("j1", "j2", "j3")), **ticket)
    holder = rig.must_claim("first")
    follower = reserve(rig, holder)
    assert follower is not None
    return holder, follower


def state(rig: Rig) -> tuple[str, str | None, str | None]:
    view = rig.leases.slots("s1")[0]
    return view.state, view.attempt_id, view.follower_id
