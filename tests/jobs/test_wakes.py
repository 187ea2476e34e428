"""Published hints: the right queue, no expiry, never an error, never a long wait."""

from __future__ import annotations

import base64
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

from dispatcher_project.celery_transport.broker import register_transports
from dispatcher_project.settings import celery
from dispatcher_project.settings.celery import celery_settings
from dispatcher_project.supervisor.embedded import EmbeddedValkey
from gpus.leasing.values import Wakes
from jobs import wakes
from jobs.wakes import HintPublisher

DEAD = "redis://127.0.0.1:1/0"


def app_of(url: str) -> Any:
    from celery import Celery

    from dispatcher_project.celery_transport.broker import Amqp

    register_transports()
    app = Celery("test", amqp=Amqp, set_as_current=False)
    app.conf.update(celery_settings(url))
    return app


def publisher_to(url: str) -> HintPublisher:
    app = app_of(url)
    return HintPublisher(lambda: app)


@pytest.fixture
def hints(valkey: EmbeddedValkey) -> HintPublisher:
    return publisher_to(valkey.url)


@pytest.fixture
def messages(
    valkey: EmbeddedValkey, fleet: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[str], list[Any]]]:
    """The messages of a queue: (task, args, headers), oldest first. The publisher gets all the time that it
    needs: a message whose confirmation comes late counts as not sent."""
    monkeypatch.setattr(wakes, "TOTAL_SECONDS", 60.0)
    monkeypatch.setattr(celery, "_PUBLISH_TIMEOUT_SECONDS", 60.0)
    client: redis.Redis = redis.Redis.from_url(valkey.url)

    def read(queue: str) -> list[Any]:
        found = [json.loads(raw) for raw in reversed(client.lrange(queue, 0, -1))]  # type: ignore[arg-type]
        client.delete(queue)
        return [
            (m["headers"]["task"], json.loads(base64.b64decode(m["body"]))[0], m["headers"]) for m in found
        ]

    yield read
    client.close()


def test_wakes_go_to_the_pool_s_queue_one_message_each(
    hints: HintPublisher, messages: Any, fleet: str
) -> None:
    assert hints.send_wakes([Wakes(fleet, None, 2), Wakes(fleet, "box7", 1)]) == 3
    assert [(name, args) for name, args, _ in messages(f"gpu.{fleet}")] == [("jobs.work", [fleet])] * 2
    assert [(name, args) for name, args, _ in messages(f"gpu.{fleet}.box7")] == [
        ("jobs.work", [fleet, "box7"])
    ]


def test_callbacks_and_sweeps_have_queues_of_their_own(hints: HintPublisher, messages: Any) -> None:
    messages("callbacks"), messages("sweeps")
    hints.wake_callbacks(["c1", "c2"])
    assert hints.wake_sweep("tick") is True
    assert [(name, args) for name, args, _ in messages("callbacks")] == [
        ("jobs.deliver", ["c1"]),
        ("jobs.deliver", ["c2"]),
    ]
    assert [(name, args) for name, args, _ in messages("sweeps")] == [("jobs.sweep", ["tick"])]


def test_a_hint_has_no_expiry_and_no_result(hints: HintPublisher, messages: Any, fleet: str) -> None:
    hints.send_wakes([Wakes(fleet, None, 1)])
    headers = messages(f"gpu.{fleet}")[0][2]
    assert headers["expires"] is None
    assert headers["eta"] is None
    assert headers["ignore_result"] is True


def test_a_dead_broker_raises_nothing_and_pauses_publishing() -> None:
    app = app_of(DEAD)
    hints = HintPublisher(lambda: app)
    assert hints.send_wakes([Wakes("zimg", None, 3)]) == 0
    tried: list[Any] = []
    app.send_task = lambda *args, **options: tried.append(args)
    assert hints.send_wakes([Wakes("zimg", None, 3)]) == 0
    hints.wake_callbacks(["c1"])
    assert hints.wake_sweep("tick") is False
    assert tried == []
    hints._shut_until = 0.0
    assert hints.send_wakes([Wakes("zimg", None, 3)]) == 3


def test_a_silent_broker_delays_all_publishers_only_once() -> None:
    """One publisher waits for its time-outs; the others, queued for a producer, leave with it."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as silent:
        hints = publisher_to(f"redis://127.0.0.1:{silent.getsockname()[1]}/0")
        threads = [threading.Thread(target=hints.send_wakes, args=[[Wakes("z", None, 5)]]) for _ in range(20)]
        started = time.monotonic()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        # the bound promised to submits, with room for a busy machine: without it this takes a minute
        assert time.monotonic() - started < 10


def test_publishing_works_again_after_a_restart_of_the_broker(tmp_path: Any) -> None:
    with EmbeddedValkey(tmp_path / "v") as server:
        hints = publisher_to(server.url)
        assert hints.send_wakes([Wakes("z", None, 1)]) == 1
        server.kill()
        assert hints.send_wakes([Wakes("z", None, 1)]) == 0
        server.start()
        hints._shut_until = 0.0
        assert hints.send_wakes([Wakes("z", None, 1)]) == 1


def test_many_threads_may_send_at_once(hints: HintPublisher, messages: Any, fleet: str) -> None:
    sent: list[int] = []
    threads = [
        threading.Thread(target=lambda: sent.append(hints.send_wakes([Wakes(fleet, None, 5)])))
        for _ in range(16)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sum(sent) == len(messages(f"gpu.{fleet}")) == 80
