"""Task and worker events for Flower that can't hold up the work.

Celery publishes a worker's heartbeat from its event loop and retries for ever: in a silent partition the
worker hangs there, deaf to SIGTERM, for as long as the partition lasts; with time-outs instead, the loop
stands still for most of it. Events are only a display: here a thread of their own publishes them, once
each, and what can't be sent is kept up to a bound.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from contextlib import suppress
from typing import Any

import structlog
from celery import bootsteps, current_task
from celery.app import events
from celery.events.dispatcher import EventDispatcher
from kombu import Producer

from gpus.protocol import Lease

log = structlog.get_logger(__name__)

HEARTBEAT_SECONDS = 5.0
"""Flower calls a worker offline after two of them are missing."""
MAX_UNSENT_EVENTS = 1_000
_PAUSE_SECONDS = 1.0


class EventPublisher:
    """One thread with one connection; starts with the first event."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self._unsent: deque[tuple[Any, dict[str, Any]]] = deque(maxlen=MAX_UNSENT_EVENTS)
        self._more = threading.Event()
        self._idle = threading.Event()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._producer: Any = None

    def put(self, event: Any, options: dict[str, Any]) -> None:
        """Returns at once. options: for `kombu.Producer.publish`."""
        self._unsent.append((event, options))
        self._idle.clear()
        self._more.set()
        if self._thread is None:
            with self._lock:
                if self._thread is None:
                    self._thread = threading.Thread(target=self._run, name="event-publisher", daemon=True)
                    self._thread.start()

    def flush(self, seconds: float) -> bool:
        """Waits until everything left, at most so long."""
        return self._thread is None or self._idle.wait(seconds)

    def _run(self) -> None:
        broken = False
        while True:
            self._more.wait()
            self._more.clear()
            try:
                self._publish_unsent()
                broken = False
            except Exception as error:  # events must never end the thread that shows them
                if not broken:
                    log.warning("events_not_sent", error=str(error), kind=type(error).__name__)
                broken = True
                self._disconnect()
                self._more.set()
                time.sleep(_PAUSE_SECONDS)

    def _publish_unsent(self) -> None:
        while self._unsent:
            event, options = self._unsent[0]
            if self._producer is None:
                connection = self._app.connection_for_write(connect_timeout=1.0)
                connection.transport_options = dict(self._app.conf.hint_transport_options)
                self._producer = Producer(connection, auto_declare=False)
            self._producer.publish(event, retry=False, **options)
            # the deque may have dropped it meanwhile, being full
            if self._unsent and self._unsent[0][0] is event:
                self._unsent.popleft()
        self._idle.set()

    def _disconnect(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            try:
                producer.connection.collect(socket_timeout=0.1)
            except Exception:
                log.debug("events_connection_not_closed", exc_info=True)


class BoundedEventDispatcher(EventDispatcher):  # type: ignore[misc]
    def _publish(self, event: Any, producer: Any, routing_key: str, **_: Any) -> None:
        if producer is not None:  # None: closed
            self.app.events.publisher.put(
                event,
                {
                    "routing_key": routing_key,
                    "exchange": self.exchange.name,
                    "declare": [self.exchange],
                    "serializer": self.serializer,
                    "headers": self.headers,
                    "delivery_mode": self.delivery_mode,
                },
            )


class Events(events.Events):  # type: ignore[misc]
    dispatcher_cls = f"{__name__}:BoundedEventDispatcher"

    def __init__(self, app: Any = None) -> None:
        super().__init__(app)
        self.publisher = EventPublisher(app)


class ShownRuns:
    """Shows in Flower which job a task runs, while it runs: the task's arguments name only its pool.

    eventer: the consumer's dispatcher of events; a new one after each reconnect."""

    def __init__(self) -> None:
        self.eventer: Any = None

    def step(self) -> type[bootsteps.StartStopStep]:
        """Return the consumer step that keeps `eventer` current."""

        class KeepEventer(bootsteps.StartStopStep):  # type: ignore[misc]
            requires = ("celery.worker.consumer.events:Events",)

            def start(_step, consumer: Any) -> None:
                self.eventer = consumer.event_dispatcher

        return KeepEventer

    def show(self, lease: Lease) -> None:
        """Called in the task's thread; returns at once. Flower's columns are narrow, so the job stands in one
        and where it runs in another; its search finds both (``kwargs:job_id=…``, ``args:gpu-1``)."""
        if self.eventer is None or not current_task:
            return
        with suppress(Exception):  # the broker is away: the run matters, not who watches it
            self.eventer.send(
                "task-started",
                uuid=current_task.request.id,
                args=f"{lease.model} on {lease.slot}",
                kwargs=repr({"job_id": lease.job_id}),
            )
