"""Task and worker events for Flower, published without blocking the worker.

Celery publishes a worker's heartbeat from its event loop and retries for ever. In a silent network partition
the worker hangs there and ignores SIGTERM; with time-outs the loop still blocks for most of the time. Events
are only a display, so here a separate thread publishes each once, and keeps up to `MAX_UNSENT_EVENTS` that
can't be sent.
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
"""Flower shows a worker as offline after two missing heartbeats."""
MAX_UNSENT_EVENTS = 1_000
_PAUSE_SECONDS = 1.0


class EventPublisher:
    """Publishes events from one thread with one connection; the thread starts with the first event.

    max_unsent: newest events that wait for the broker. pause_seconds: before the next try.
    """

    def __init__(self, app: Any, *, max_unsent: int = MAX_UNSENT_EVENTS) -> None:
        self._app = app
        self.pause_seconds = _PAUSE_SECONDS
        self._unsent: deque[tuple[Any, dict[str, Any]]] = deque(maxlen=max_unsent)
        self._more = threading.Event()
        self._idle = threading.Event()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._producer: Any = None

    def put(self, event: Any, options: dict[str, Any]) -> None:
        """Queue an event; return at once. options: for `kombu.Producer.publish`."""
        self._unsent.append((event, options))
        self._idle.clear()
        self._more.set()
        if self._thread is None:
            with self._lock:
                if self._thread is None:
                    self._thread = threading.Thread(target=self._run, name="event-publisher", daemon=True)
                    self._thread.start()

    def flush(self, seconds: float) -> bool:
        """Wait up to `seconds` for all events to be sent; return True if they were."""
        return self._thread is None or self._idle.wait(seconds)

    def _run(self) -> None:
        broken = False
        while True:
            self._more.wait()
            self._more.clear()
            try:
                self._publish_unsent()
                broken = False
            except Exception as error:  # no error may end this thread
                if not broken:
                    log.warning("events_not_sent", error=str(error), kind=type(error).__name__)
                broken = True
                self._disconnect()
                self._more.set()
                time.sleep(self.pause_seconds)

    def _publish_unsent(self) -> None:
        while self._unsent:
            event, options = self._unsent[0]
            if self._producer is None:
                connection = self._app.connection_for_write(connect_timeout=1.0)
                connection.transport_options = dict(self._app.conf.hint_transport_options)
                self._producer = Producer(connection, auto_declare=False)
            self._producer.publish(event, retry=False, **options)
            # a full deque may have dropped it in the meantime
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
    """Celery's dispatcher of events, which hands them to the `EventPublisher`."""

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
    """Celery's events with our dispatcher and publisher; the app's option `events`."""

    dispatcher_cls = f"{__name__}:BoundedEventDispatcher"

    def __init__(self, app: Any = None) -> None:
        super().__init__(app)
        self.publisher = EventPublisher(app)


class ShownRuns:
    """Shows in Flower which job a task runs, because the task's own arguments name only its pool.

    eventer: the consumer's event dispatcher; a new one after each reconnect.
    """

    def __init__(self) -> None:
        self.eventer: Any = None

    def step(self) -> type[bootsteps.StartStopStep]:
        """Return the consumer step that updates `eventer`."""

        class KeepEventer(bootsteps.StartStopStep):  # type: ignore[misc]
            requires = ("celery.worker.consumer.events:Events",)

            def start(_step, consumer: Any) -> None:
                self.eventer = consumer.event_dispatcher

        return KeepEventer

    def show(self, lease: Lease) -> None:
        """Send the job's id as the task's kwargs, model and slot as its args; Flower's search finds both
        (``kwargs:job_id=…``, ``args:gpu-1``). Called in the task's thread; returns at once."""
        if self.eventer is None or not current_task:
            return
        with suppress(Exception):  # a display must not fail the run
            self.eventer.send(
                "task-started",
                uuid=current_task.request.id,
                args=f"{lease.model} on {lease.slot}",
                kwargs=repr({"job_id": lease.job_id}),
            )
