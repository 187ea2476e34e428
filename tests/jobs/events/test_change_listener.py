"""A worker receives announcements of changes at once, and again after Redis was away."""

from __future__ import annotations

import threading
import time

import redis
from structlog.testing import capture_logs

from dispatcher_project.supervisor.embedded import EmbeddedValkey
from gpus.leasing import connect
from jobs.events.announce import Listener, channel
from tests.support.servers.sentinels import watched


class Received:
    def __init__(self) -> None:
        self.ids: list[str] = []
        self.came = threading.Event()

    def __call__(self, ids):
        self.ids.extend(ids)
        self.came.set()


def say(url: str, text: str, received: Received) -> None:
    """Publish until it was received: a subscription takes a moment."""
    with redis.Redis.from_url(url) as client:
        for _ in range(1200):
            client.publish(channel(), text)
            received.came.wait(0.05)
            if set(text.split()) <= set(received.ids):
                return
    raise AssertionError("it was not received")


def test_the_listener_receives_announced_jobs(valkey):
    received = Received()
    listener = Listener(valkey.url, received)
    listener.start()
    try:
        say(valkey.url, "a b", received)
    finally:
        listener.stop()
    assert received.ids[:2] == ["a", "b"]


def test_the_listener_subscribes_again_after_redis_was_killed(tmp_path):
    received = Received()
    with EmbeddedValkey(tmp_path, append_only=False) as server:
        listener = Listener(server.url, received, again_seconds=0.05)
        listener.start()
        say(server.url, "a", received)
        server.kill()
        received.came.clear()
        server.start()
        say(server.url, "b", received)
        listener.stop()
    assert received.ids[-1] == "b"


def test_the_listener_changes_to_the_promoted_replica_while_the_former_master_hangs(tmp_path, monkeypatch):
    monkeypatch.setattr(connect, "TIMEOUT_SECONDS", 0.4)
    received = Received()
    with watched(tmp_path) as servers:
        listener = Listener(servers.url, received, silence_seconds=0.2, again_seconds=0.05)
        listener.start()
        say(servers.master.url, "a", received)
        servers.pause(servers.master)
        servers.wait_for_promotion()
        received.came.clear()
        say(servers.replica.url, "b", received)
        listener.stop()
    assert received.ids[-1] == "b"


def pings(client: redis.Redis) -> int:
    return client.info("commandstats").get("cmdstat_ping", {"calls": 0})["calls"]


def test_a_silent_subscription_is_kept(valkey):
    received = Received()
    with redis.Redis.from_url(valkey.url, decode_responses=True) as client, capture_logs() as logs:
        listener = Listener(valkey.url, received, silence_seconds=0.1)
        listener.start()
        say(valkey.url, "a", received)
        before = pings(client)
        for _ in range(400):  # until it has asked several times
            if pings(client) >= before + 3:
                break
            time.sleep(0.05)
        else:
            raise AssertionError("it did not ask")
        received.came.clear()
        say(valkey.url, "b", received)
        listener.stop()
    assert "listener_lost_redis" not in [entry["event"] for entry in logs]
