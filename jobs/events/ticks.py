"""When each sweep last ran, kept in Redis: for `/readyz` and the metrics; nothing decides by it."""

from __future__ import annotations

from collections.abc import Sequence

import redis
from django.conf import settings

from jobs.events.announce import redis_client

_KEY = "jobs:ticks"


def note_ticks(names: Sequence[str]) -> None:
    """These sweeps ran just now, by Redis' clock. Never raises."""
    if not names:
        return
    try:
        client = redis_client(settings.REDIS_URL)
        seconds, microseconds = client.time()
        now = seconds + microseconds / 1e6
        client.hset(_KEY, mapping={name: f"{now:.3f}" for name in names})
    except (redis.RedisError, OSError, ValueError):
        return


def tick_ages() -> dict[str, float]:
    """Seconds since each sweep ran; empty if Redis is away or none ever ran."""
    try:
        client = redis_client(settings.REDIS_URL)
        seconds, microseconds = client.time()
        ticks = client.hgetall(_KEY)
    except (redis.RedisError, OSError, ValueError):
        return {}
    now = seconds + microseconds / 1e6
    return {_text(name): max(0.0, now - float(at)) for name, at in ticks.items()}


def _text(name: bytes | str) -> str:
    return name.decode() if isinstance(name, bytes) else name
