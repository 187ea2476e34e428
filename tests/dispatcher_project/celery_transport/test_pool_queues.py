"""Consumed queues follow the pools in the database, and stay without it."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock, patch

import pytest
from celery import Celery
from django.db import OperationalError
from kombu import Queue

from dispatcher_project.celery_transport.pool_queues import PoolQueues, PoolWatch
from gpus.models import Pool


class RecordingConsumer:
    """A fake Celery consumer that records its queues."""

    def __init__(self) -> None:
        self.consumed = {"gpu"}
        self.ended_waits = 0
        self.app = SimpleNamespace(conf=SimpleNamespace(task_default_queue="gpu"))

    @property
    def task_consumer(self) -> Any:
        channel = SimpleNamespace(end_wait=self._end_wait)
        return SimpleNamespace(queues=[SimpleNamespace(name=name) for name in self.consumed], channel=channel)

    def _end_wait(self) -> None:
        self.ended_waits += 1

    def add_task_queue(self, name: str) -> None:
        self.consumed.add(name)

    def cancel_task_queue(self, name: str) -> None:
        self.consumed.remove(name)


@pytest.mark.database
@pytest.mark.django_db
def test_all_pools_of_the_database_are_watched() -> None:
    watch = PoolWatch(None)
    Pool.objects.create(name="zimg")
    watch.look()
    Pool.objects.create(name="flux")
    watch.look()
    assert watch.queues == {"gpu.zimg", "gpu.flux"}
    Pool.objects.filter(name="zimg").delete()
    watch.look()
    assert watch.queues == {"gpu.flux"}


@pytest.mark.django_db
def test_a_pinned_worker_watches_the_queues_of_its_process() -> None:
    watch = PoolWatch(None, host="box7")
    Pool.objects.create(name="zimg")
    watch.look()
    assert watch.queues == {"gpu.zimg.box7"}


def test_named_pools_need_no_database() -> None:
    watch = PoolWatch(["zimg"])
    watch.start()
    assert watch.queues == {"gpu.zimg"}


@pytest.mark.database
@pytest.mark.django_db
def test_without_the_database_the_known_pools_are_still_served(monkeypatch: pytest.MonkeyPatch) -> None:
    watch = PoolWatch(None)
    Pool.objects.create(name="zimg")
    watch.look()

    def away(*_: Any, **__: Any) -> None:
        raise OperationalError("server closed the connection")

    monkeypatch.setattr(Pool.objects, "values_list", away)
    monkeypatch.setattr("dispatcher_project.celery_transport.pool_queues.close_old_connections", lambda: None)
    watch.look()
    assert watch.queues == {"gpu.zimg"}


def test_consumers_are_added_and_cancelled_and_the_waiting_queue_stays() -> None:
    consumer = RecordingConsumer()
    wanted = {"gpu.zimg", "gpu.flux"}
    step = PoolQueues(consumer, pool_queues=lambda: frozenset(wanted))
    step.follow(consumer)
    assert consumer.consumed == {"gpu", "gpu.zimg", "gpu.flux"}
    wanted.remove("gpu.zimg")
    step.follow(consumer)
    assert consumer.consumed == {"gpu", "gpu.flux"}


def test_pools_known_at_the_start_are_consumed_by_the_loop() -> None:
    """RabbitMQ delivers as soon as a queue is consumed, and a message before the loop runs ends the
    worker."""
    app = Celery("test", broker="memory://", set_as_current=False)
    with app.connection() as connection:
        consumer = MagicMock(app=app, task_consumer=app.amqp.TaskConsumer(connection, queues=[Queue("gpu")]))
        with patch.object(consumer.task_consumer, "consume") as consume:
            PoolQueues(consumer, pool_queues=lambda: frozenset({"gpu.zimg"})).start(consumer)
        assert {queue.name for queue in consumer.task_consumer.queues} == {"gpu", "gpu.zimg"}
    assert not consume.called
    assert not consumer.add_task_queue.called


def test_a_worker_without_pools_does_not_include_the_step() -> None:
    assert PoolQueues(None).include_if(None) is False


@pytest.mark.django_db
def test_an_announced_registration_is_read_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    looked = threading.Event()
    watch = PoolWatch(None, look_seconds=3600.0)
    watch.start()
    monkeypatch.setattr(watch, "look", looked.set)
    watch.nudge()
    assert looked.wait(30)
    watch.stop()


def test_the_blocking_read_is_ended_once_a_queue_is_added() -> None:
    consumer = RecordingConsumer()
    step = PoolQueues(consumer, pool_queues=lambda: frozenset({"gpu.zimg"}))
    step.follow(consumer)
    step.follow(consumer)
    assert consumer.ended_waits == 1
