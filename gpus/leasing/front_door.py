"""What a submit asks before its job is stored: may its tenant submit now, and is a slot free."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from gpus.leasing import codec
from gpus.leasing.values import SpareSlots, Tokens


class FrontDoor:
    """A part of `store.RedisLeases`."""

    def take_tokens(self, tenant: str, tokens: int, *, per_second: float, burst: int) -> Tokens:
        codec.check_names(tenant)
        request = uuid.uuid4().hex
        return codec.read_tokens(self._run("take_tokens", tenant, tokens, per_second, burst, request))

    def spare_slots(self, pool: str, tenant: str, models: Sequence[str]) -> SpareSlots:
        codec.check_names(pool, tenant, *models)
        return codec.read_spare(self._run("spare_slots", pool, tenant, *models))

    def _run(self, script: str, *args: codec.Arg) -> codec.Answer:
        raise NotImplementedError
