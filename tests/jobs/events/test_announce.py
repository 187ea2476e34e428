from __future__ import annotations

import socket
import time

import pytest
import redis

from jobs.events import announce as announcing
from jobs.events.announce import Announcer, channel, read_announcement


def test_ids_arrive_in_messages_of_bounded_length(redis_url: str) -> None:
    with redis.Redis.from_url(redis_url) as client, client.pubsub() as listener:
        listener.subscribe(channel())
        listener.get_message(timeout=30)
        ids = [f"job{number}" for number in range(1200)]
        Announcer(redis_url)(ids)
        result: list[list[str]] = []
        while sum(map(len, result)) < len(ids):
            message = listener.get_message(timeout=30)
            assert message is not None
            result.append(read_announcement(message["data"]))
    assert [job_id for some in result for job_id in some] == ids
    assert max(map(len, result)) <= 500


def test_an_empty_list_is_not_announced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(announcing, "redis_client", None)
    Announcer("redis://127.0.0.1:1/0")([])


def test_without_redis_one_call_tries_and_the_others_return_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as refusing:
        refusing.settimeout(10)
        announce = Announcer(f"redis://127.0.0.1:{refusing.getsockname()[1]}/0")
        for _ in range(100):
            announce(["job"])
        refusing.accept()[0].close()
        monkeypatch.setattr(announce, "_resting_until", time.monotonic())
        announce(["job"])
        refusing.accept()[0].close()
        refusing.settimeout(0)
        with pytest.raises(BlockingIOError):
            refusing.accept()


def test_announcing_through_sentinel_takes_no_longer() -> None:
    pool = announcing.redis_client("redis+sentinel://127.0.0.1:1/mymaster/0").connection_pool
    sentinels = [one.connection_pool.connection_kwargs for one in pool.sentinel_manager.sentinels]
    for options in (pool.connection_kwargs, *sentinels):
        assert options["socket_timeout"] == options["socket_connect_timeout"] == 0.2
