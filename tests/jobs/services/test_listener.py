"""A worker hears of changes at once, and again after Redis was away."""

from __future__ import annotations

import threading

import redis

from dispatcher_project.embedded import EmbeddedValkey
from jobs.events.announce import channel
from jobs.services import listener
from jobs.services.listener import Listener


class Heard:
    def __init__(self) -> None:
        self.ids: list[str] = []
        self.came = threading.Event()

    def __call__(self, ids):
        self.ids.extend(ids)
        self.came.set()


def say(url: str, text: str, heard: Heard) -> None:
    """Until it was heard: a subscription takes a moment."""
    with redis.Redis.from_url(url) as client:
        for _ in range(1200):
            client.publish(channel(), text)
            heard.came.wait(0.05)
            if set(text.split()) <= set(heard.ids):
                return
    raise AssertionError("nobody heard it")


def test_announced_jobs_are_heard(valkey):
    heard = Heard()
    ears = Listener(valkey.url, heard)
    ears.start()
    try:
        say(valkey.url, "a b", heard)
    finally:
        ears.stop()
    assert heard.ids[:2] == ["a", "b"]


def test_it_hears_again_after_redis_was_killed(tmp_path, monkeypatch):
    monkeypatch.setattr(listener, "AGAIN_SECONDS", 0.05)
    heard = Heard()
    with EmbeddedValkey(tmp_path, append_only=False) as server:
        ears = Listener(server.url, heard)
        ears.start()
        say(server.url, "a", heard)
        server.kill()
        heard.came.clear()
        server.start()
        say(server.url, "b", heard)
        ears.stop()
    assert heard.ids[-1] == "b"
