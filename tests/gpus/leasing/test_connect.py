"""URLs for every way to run Redis, and one store per process, URL and fleet."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import redis
from django.conf import settings

from dispatcher_project.supervisor.embedded import EmbeddedValkey
from gpus.errors import LeasingUnavailable
from gpus.leasing import keys, store
from gpus.leasing.connect import connect
from gpus.leasing.store import RedisFleets
from tests.gpus.leasing.lease_harness import LeaseHarness
from tests.support.servers.sentinels import NEVER_SECONDS, watched


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        (
            "redis://:pw@h:7000/2",
            {"host": "h", "port": 7000, "db": 2, "password": "pw", "socket_keepalive": True},
        ),
        ("rediss://h/1", {"host": "h", "db": 1}),
        ("unix:///tmp/x.sock?db=3", {"path": "/tmp/x.sock", "db": 3}),
    ],
)
def test_clients_never_retry_and_wait_two_seconds_at_most(url: str, expected: dict[str, Any]) -> None:
    client: Any = connect(url)
    options = client.connection_pool.connection_kwargs
    assert expected.items() <= options.items()
    assert (options["socket_timeout"], options["socket_connect_timeout"]) == (2.0, 2.0)
    assert client.get_retry().get_retries() == 0


@pytest.mark.parametrize(
    "url", ["http://h", "h:6379", "redis+sentinel://h:1,h:2", "redis+sentinel://h:1,h:2/"]
)
def test_other_urls_are_refused(url: str) -> None:
    with pytest.raises(ValueError, match=r"scheme|master"):
        connect(url)


@pytest.mark.parametrize(("fresh_seconds", "asked"), [(60.0, 0), (0.0, 2)], ids=["fresh", "idle"])
def test_an_idle_connection_is_checked_before_reuse(
    valkey: EmbeddedValkey, monkeypatch: pytest.MonkeyPatch, fresh_seconds: float, asked: int
) -> None:
    """It gives the interpreter away, in the middle of a slot's way to its next job."""
    client: Any = connect(valkey.url)
    client.connection_pool.fresh_seconds = fresh_seconds
    pool, looks = client.connection_pool, []
    looked = pool.connection_class.can_read
    monkeypatch.setattr(
        pool.connection_class, "can_read", lambda self, *args: looks.append(1) or looked(self, *args)
    )
    client.ping()
    looks.clear()
    assert client.ping()
    assert client.ping()
    assert len(looks) == asked
    assert (len(pool._available_connections), len(pool._in_use_connections)) == (1, 0)
    client.close()


def test_one_call_fails_where_the_server_ended_a_fresh_connection(valkey: EmbeddedValkey) -> None:
    client: Any = connect(valkey.url)
    client.connection_pool.fresh_seconds = 60.0
    other = redis.Redis.from_url(valkey.url)
    assert other.client_kill_filter(_id=client.client_id()) == 1
    with pytest.raises(redis.ConnectionError):
        client.ping()
    assert client.ping()
    client.close()
    other.close()


def test_two_callers_have_a_connection_each(valkey: EmbeddedValkey) -> None:
    client: Any = connect(valkey.url)
    pool = client.connection_pool
    client.ping()
    first, second = pool.get_connection(), pool.get_connection()
    assert first is not second
    pool.release(first)
    assert pool.get_connection() is first
    pool.release(first)
    pool.release(second)
    client.close()


def test_a_master_is_found_by_its_sentinels(tmp_path: Path) -> None:
    with watched(tmp_path, down_after_seconds=NEVER_SECONDS) as redis_:
        client: Any = connect(redis_.url)
        assert client.get_retry().get_retries() == 0
        harness = LeaseHarness(client, "main").open()
        harness.server()
        harness.push("j1")
        assert harness.must_claim().job_id == "j1"
        client.close()


def test_a_cluster_that_does_not_answer_makes_leasing_unavailable() -> None:
    with pytest.raises(LeasingUnavailable, match="does not answer"):
        RedisFleets("redis+cluster://127.0.0.1:1")("main")


def test_a_store_is_made_once_per_process_and_fleet(
    valkey: EmbeddedValkey, fleet: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleets = RedisFleets(valkey.url)
    one = fleets(fleet)
    assert fleets(fleet) is one
    assert fleets(f"{fleet}b") is not one
    assert one._lease_us == settings.DISPATCHER.lease_seconds * 1_000_000
    monkeypatch.setattr(store.os, "getpid", os.getppid)
    assert fleets(fleet) is not one


@pytest.mark.parametrize("fleet", ["", "a{b", "a}b", "a:b"])
def test_a_fleets_name_must_not_break_its_hash_tag(fleet: str) -> None:
    with pytest.raises(ValueError, match="fleet"):
        keys.prefix(fleet)
