"""Redis without memory while a tenant submits as fast as it can."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from verification.hostile.attacks.full_store import FullStore
from verification.proving import own_redis

if TYPE_CHECKING:
    from verification.hostile.environment import Environment


class FullRedis(FullStore):
    id, title = "n35", "submits on 8 connections while Redis is full"

    @contextmanager
    def full(self, env: Environment) -> Iterator[None]:
        redis_url = env.system.redis_url
        earlier = own_redis.refused_writes(redis_url)
        before = own_redis.fill_up(redis_url)
        try:
            yield
        finally:
            own_redis.set_max_memory(redis_url, before)
        refused = self.figures["refused writes"] = own_redis.refused_writes(redis_url) - earlier
        self.must(refused > 0, "Redis refused no write: it was not full")


ATTACKS = (FullRedis,)
