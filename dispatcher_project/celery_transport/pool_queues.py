"""The queues that a GPU worker consumes: one per pool, updated when pools are added or removed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from typing import Any

import structlog
from celery import bootsteps
from django.db import close_old_connections, connection

from gpus.models import Pool
from jobs.wakes import queue_of

log = structlog.get_logger(__name__)

LOOK_SECONDS = 0.5
FOLLOW_SECONDS = 0.1
"""Delay until an announced new pool is consumed; if the announcement was lost, `LOOK_SECONDS` come on top."""


class PoolWatch:
    """Reads the pools from the database, in its own thread. Without the database the known pools stay.

    pools: only these, whether they exist yet or not; None: all. host: process of a pinned worker, for its
    queues. look_seconds: time between two reads without an announcement.
    """

    def __init__(
        self,
        pools: Collection[str] | None,
        *,
        host: str | None = None,
        look_seconds: float = LOOK_SECONDS,
    ) -> None:
        self._look_seconds = look_seconds
        self._only = None if pools is None else frozenset(pools)
        self._host = host
        self._known: frozenset[str] = self._only or frozenset()
        self._stopping, self._nudged = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def queues(self) -> frozenset[str]:
        return frozenset(queue_of(pool, self._host) for pool in self._known)

    def look(self) -> None:
        """Read the pools once."""
        if self._only is not None:
            return
        try:
            self._known = frozenset(Pool.objects.values_list("name", flat=True))
        except Exception as error:  # the known pools are still served without a database
            log.warning("pools_not_read", error=str(error).strip())
            close_old_connections()

    def start(self) -> None:
        self.look()
        if self._only is None:
            self._thread = threading.Thread(target=self._run, name="pool-watch", daemon=True)
            self._thread.start()

    def nudge(self) -> None:
        """Read the pools now, because the registry changed. Callable from any thread."""
        self._nudged.set()

    def stop(self) -> None:
        self._stopping.set()
        self._nudged.set()

    def _run(self) -> None:
        while True:
            self._nudged.wait(self._look_seconds)
            self._nudged.clear()
            if self._stopping.is_set():
                break
            self.look()
        connection.close()


class PoolQueues(bootsteps.StartStopStep):  # type: ignore[misc]
    """Step of a Celery consumer that adds and cancels queues, in the consumer's thread, the only one that
    may."""

    requires = ("celery.worker.consumer.tasks:Tasks",)

    def __init__(
        self, consumer: Any, pool_queues: Callable[[], frozenset[str]] | None = None, **options: Any
    ) -> None:
        self._queues = pool_queues
        self._timer: Any = None
        super().__init__(consumer, **options)

    def include_if(self, consumer: Any) -> bool:
        return self._queues is not None

    def start(self, consumer: Any) -> None:
        # added without consuming: RabbitMQ would deliver before the loop, which starts consuming, runs
        for queue in sorted(self._missing(consumer)):
            queues = consumer.app.amqp.queues
            consumer.task_consumer.add_queue(queues.select_add(queues[queue]))
        self._timer = consumer.timer.call_repeatedly(FOLLOW_SECONDS, self.follow, (consumer,))

    def stop(self, consumer: Any) -> None:
        if self._timer is not None:
            consumer.timer.cancel(self._timer)
            self._timer = None

    def follow(self, consumer: Any) -> None:
        """Consume new queues and cancel those of removed pools."""
        if consumer.task_consumer is None or self._queues is None:
            return
        wanted, consumed = self._queues(), _consumed(consumer)
        unwanted = consumed - wanted - {consumer.app.conf.task_default_queue}
        missing = sorted(wanted - consumed)
        for queue in missing:
            consumer.add_task_queue(queue)
        if missing:
            end_wait = getattr(getattr(consumer.task_consumer, "channel", None), "end_wait", None)
            if end_wait is not None:  # Redis; RabbitMQ delivers at once
                end_wait()
        for queue in sorted(unwanted):
            consumer.cancel_task_queue(queue)

    def _missing(self, consumer: Any) -> frozenset[str]:
        return (self._queues() if self._queues else frozenset()) - _consumed(consumer)


def _consumed(consumer: Any) -> frozenset[str]:
    return frozenset(queue.name for queue in consumer.task_consumer.queues)
