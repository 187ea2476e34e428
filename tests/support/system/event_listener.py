"""Collects Celery events as Flower does, in a thread."""

from __future__ import annotations

import contextlib
import threading
from typing import Any

import redis

from tests.support.waiting import wait_for


class EventListener:
    """Listening once made: its subscription stands. client: of the broker's Redis."""

    def __init__(self, app: Any, client: redis.Redis) -> None:
        self.events: list[dict[str, Any]] = []
        self._app = app
        self._closing = False
        self._thread = threading.Thread(target=self._listen, daemon=True)
        before = client.pubsub_numpat()
        self._thread.start()
        wait_for(lambda: client.pubsub_numpat() > before, what="the listener's subscription")

    @property
    def types(self) -> list[str]:
        return [event["type"] for event in self.events]

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in self.events if event["type"] == kind]

    def close(self) -> None:
        self._closing = True
        self._thread.join(10)

    def _listen(self) -> None:
        with self._app.connection_for_read() as connection:
            receiver = self._app.events.Receiver(connection, handlers={"*": self.events.append})
            with receiver.consumer_context() as (own, _, _):
                while not self._closing:
                    with contextlib.suppress(TimeoutError):
                        own.drain_events(timeout=0.2)
