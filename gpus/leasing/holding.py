"""What a worker asks about the leases that it holds."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

from gpus.leasing import codec
from gpus.protocol import Lease, LeaseRef

_LEASES_PER_CALL = 100
"""While it answers, Redis serves nobody else."""


class Holding:
    """A part of `store.RedisLeases`."""

    _lease_us: int

    def renew(
        self,
        worker: str,
        leases: Sequence[Lease],
        settling: Sequence[Lease],
        followers: Sequence[Lease] = (),
    ) -> list[LeaseRef]:
        ours, lost = [*leases, *settling, *followers], list[LeaseRef]()
        for first in range(0, len(ours), _LEASES_PER_CALL):
            piece = ours[first : first + _LEASES_PER_CALL]
            args = chain.from_iterable(map(codec.lease_args, piece))
            running = max(0, len(leases) - first)
            ending = max(0, len(leases) + len(settling) - first) - running
            gone = self._run("renew", worker, self._lease_us, running, ending, *args)
            lost += [piece[at].ref for at in gone]
        return lost

    def is_held(self, ref: LeaseRef) -> bool:
        return bool(self._run("is_held", *codec.ref_args(ref)))

    def granted(self, attempt_id: str, *, worker: str) -> Lease | None:
        return codec.read_lease(self._run("granted", worker, attempt_id))

    def _run(self, script: str, *args: codec.Arg) -> codec.Answer:
        raise NotImplementedError
