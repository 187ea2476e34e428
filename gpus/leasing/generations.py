"""Making an index anew, and which one it is."""

from __future__ import annotations

import math
import uuid
from collections.abc import Sequence

from gpus.leasing import codec
from gpus.protocol import Lease

REBUILD_SILENCE_SECONDS = 6
"""Without a sign of life for so long, a rebuild may be taken over."""
_SHARES_PER_CALL = 500


class Generations:
    """A part of `store.RedisLeases`."""

    _lease_us: int

    def generation(self) -> str | None:
        found = self._run("generation")
        return None if found is None else str(found[0])

    def generation_age_seconds(self) -> float | None:
        found = self._run("generation")
        return None if found is None else float(found[1])

    def unsure_age_seconds(self) -> float | None:
        found = self._run("generation")
        if found is None:
            return None
        return math.inf if found[2] else float(found[1])

    def fleet_time_us(self) -> int | None:
        found = self._run("generation")
        return None if found is None else int(found[3])

    def begin_rebuild(self, owner: str, *, latest_start_us: int = 0) -> str:
        silence_us = REBUILD_SILENCE_SECONDS * 1_000_000
        return str(self._run("begin_rebuild", owner, silence_us, uuid.uuid4().hex, latest_start_us))

    def wipe(self, owner: str, max_keys: int = 10_000) -> bool:
        return bool(self._run("wipe", owner, max_keys))

    def restore_lease(self, lease: Lease, *, held_seconds: float | None = None) -> bool:
        held_us: codec.Arg = "" if held_seconds is None else int(held_seconds * 1e6)
        return bool(self._run("restore_lease", self._lease_us, *codec.lease_args(lease), held_us))

    def restore_shares(self, pool: str, got: Sequence[tuple[int, str, float]]) -> None:
        for first in range(0, len(got), _SHARES_PER_CALL):
            args: list[codec.Arg] = []
            for priority, tenant, seconds in got[first : first + _SHARES_PER_CALL]:
                args += (priority, tenant, seconds)
            self._run("restore_shares", pool, *args)

    def open_generation(self, owner: str, *, none_held: bool = False) -> str:
        return str(self._run("open_generation", owner, uuid.uuid4().hex, "1" if none_held else ""))

    def _run(self, script: str, *args: codec.Arg) -> codec.Answer:
        raise NotImplementedError
