"""Events arrive, and never block their sender."""

from __future__ import annotations

import socket
from typing import Any

import redis
from celery import Celery

from dispatcher_project.celery_transport.broker import Amqp, register_transports
from dispatcher_project.celery_transport.events import EventPublisher, Events
from dispatcher_project.settings.celery import celery_settings
from dispatcher_project.supervisor.embedded import EmbeddedValkey
from tests.support.system.event_listener import EventListener
from tests.support.waiting import wait_for


def an_app(url: str) -> Any:
    register_transports()
    app = Celery("test", amqp=Amqp, events=Events, set_as_current=False)
    app.conf.update(celery_settings(url))
    return app


def test_worker_and_task_events_arrive(valkey: EmbeddedValkey) -> None:
    app = an_app(valkey.url)
    with app.connection_for_write() as connection, redis.Redis.from_url(valkey.url) as client:
        listener = EventListener(app, client)
        dispatcher = app.events.Dispatcher(connection, hostname="w@h", buffer_group=["task"])
        dispatcher.send("worker-heartbeat", freq=5)
        dispatcher.send("task-received", uuid="1", name="jobs.work")
        dispatcher.flush()
        wait_for(lambda: len(listener.events) == 2)
        listener.close()
    assert listener.types == ["worker-heartbeat", "task-received"]


def test_a_silent_broker_blocks_no_sender_and_fills_no_memory() -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=64) as silent:
        app = an_app(f"redis://127.0.0.1:{silent.getsockname()[1]}/0")
        publisher = EventPublisher(app, max_unsent=10)
        for number in range(500):  # each one waiting for its time-out, they'd take ten minutes
            publisher.put({"type": "worker-heartbeat", "number": number}, {"routing_key": "worker.heartbeat"})
        assert len(publisher._unsent) == 10
        assert publisher.flush(0.01) is False


def test_events_flow_again_when_the_broker_is_back(tmp_path: Any) -> None:
    with EmbeddedValkey(tmp_path / "v") as server:
        app = an_app(server.url)
        app.events.publisher.pause_seconds = 0.05
        with app.connection_for_write() as connection:
            dispatcher = app.events.Dispatcher(connection, hostname="w@h")
        dispatcher.send("worker-online")
        assert app.events.publisher.flush(10)
        server.kill()
        dispatcher.send("worker-heartbeat")
        assert not app.events.publisher.flush(0.2)
        server.start()
        assert app.events.publisher.flush(10)
