"""The attack on a full Redis, against a real one: it is held only if Redis refused writes."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest
import redis

from dispatcher_project.supervisor.embedded import EmbeddedValkey
from verification.hostile.attacks import full_store
from verification.hostile.attacks.full_redis import FullRedis
from verification.hostile.wire import Answer
from verification.proving import own_redis

NOT_FULL = "Redis refused no write: it was not full"


def play(monkeypatch: pytest.MonkeyPatch, url: str, submit: Any) -> FullRedis:
    """Run the attack, whose submits call `submit` and are refused."""

    def ask(*_: Any, **__: Any) -> Answer:
        submit()
        return Answer(503, headers={"retry-after": "1"})

    monkeypatch.setattr(FullRedis, "submit", ask)
    monkeypatch.setattr(full_store, "ask", ask)
    monkeypatch.setattr(full_store, "flood", lambda once, **_: once(0))
    env: Any = SimpleNamespace(
        system=SimpleNamespace(redis_url=url), url="", attacker_key="", neighbour_key="", shared_model="m"
    )
    attack = FullRedis()
    attack.prepare(env)
    attack.play(env, until=time.monotonic())
    return attack


def write_to(url: str) -> None:
    with redis.Redis.from_url(url) as client, pytest.raises(redis.exceptions.OutOfMemoryError):
        client.set("key", "value")


def test_a_redis_that_refuses_writes_was_full(
    valkey: EmbeddedValkey, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = own_redis.refused_writes(valkey.url)
    attack = play(monkeypatch, valkey.url, lambda: write_to(valkey.url))
    assert attack.wrongs() == []
    assert attack.figures["refused writes"] == own_redis.refused_writes(valkey.url) - before == 1
    with redis.Redis.from_url(valkey.url) as client:
        assert client.set("key", "value"), "the limit is lifted"


def test_an_attack_that_did_not_fill_redis_is_not_held(
    valkey: EmbeddedValkey, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own_redis, "fill_up", lambda url: "0")
    assert play(monkeypatch, valkey.url, lambda: None).wrongs() == [NOT_FULL]
