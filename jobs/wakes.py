"""Publishes all Celery messages: wakes, hints that callbacks are due, ticks of sweeps.

All of them are hints: lost ones are repaired by a sweep within seconds, doubled ones find nothing to do. So
nothing here raises and nothing waits long: a publish ends within `PUBLISH_POLICY` × the time-outs of
`publish_options` (three seconds), and after a failure nothing is published for a moment, so that a submit
is not slowed by a dead broker. No message has an expiry: Celery judges that by the receiver's wall clock,
and queues that nobody reads are bounded in length (`dispatcher_project.celery_transport.broker`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import structlog
from kombu.pools import ProducerPool

from gpus.leasing.values import Wakes

log = structlog.get_logger(__name__)

WORK, DELIVER, SWEEP = "jobs.work", "jobs.deliver", "jobs.sweep"
CALLBACKS_QUEUE, SWEEPS_QUEUE = "callbacks", "sweeps"

SHUT_SECONDS = 2.0
"""How long nothing is tried after a publish that failed; the fill comes every two seconds anyway."""
TOTAL_SECONDS = 3.0
"""The longest one call may take."""
_POOL_LIMIT = 8


def queue_of(pool: str, host: str | None = None) -> str:
    """``gpu.<pool>``, or ``gpu.<pool>.<host>`` for the worker that is pinned to that host."""
    return f"gpu.{pool}" if host is None else f"gpu.{pool}.{host}"


class HintPublisher:
    """Publishes through producers of its own, whose time-outs are shorter than a consumer's.

    app: returns the Celery app, at the first publish; its `hint_transport_options` are for these connections.
    """

    def __init__(self, app: Callable[[], Any]) -> None:
        self._make_app = app
        self._lock = threading.Lock()
        self._opened: tuple[Any, ProducerPool] | None = None
        self._shut_until = 0.0

    def send_wakes(self, wakes: Sequence[Wakes]) -> int:
        """How many of them left; fewer than asked for when the broker is away."""
        return self._publish(
            (
                WORK,
                [wake.pool] if wake.host is None else [wake.pool, wake.host],
                queue_of(wake.pool, wake.host),
            )
            for wake in wakes
            for _ in range(wake.count)
        )

    def wake_callbacks(self, callback_ids: Sequence[str]) -> None:
        """These outbox rows are due now."""
        self._publish((DELIVER, [callback_id], CALLBACKS_QUEUE) for callback_id in callback_ids)

    def wake_sweep(self, name: str) -> bool:
        """``tick`` for all that are due. False: it did not leave."""
        return self._publish([(SWEEP, [name], SWEEPS_QUEUE)]) == 1

    def _publish(self, messages: Iterable[tuple[str, list[str], str]]) -> int:
        """messages: task name, arguments, queue. Returns how many left."""
        sent = 0
        until = time.monotonic() + TOTAL_SECONDS
        name = queue = ""
        try:
            for name, arguments, queue in messages:
                if not self._send(name, arguments, queue, until):
                    break
                sent += 1
        except Exception as error:  # whatever it is, the hint is lost and nothing else
            self._shut_until = time.monotonic() + SHUT_SECONDS
            log.warning("hint_not_sent", task=name, queue=queue, error=str(error), kind=type(error).__name__)
        return sent

    def _send(self, name: str, arguments: list[str], queue: str, until: float) -> bool:
        if time.monotonic() < self._shut_until:
            return False
        app, producers = self._open()
        with producers.acquire(block=True, timeout=TOTAL_SECONDS) as producer:
            # it may have waited here for others who found the broker dead
            if time.monotonic() > until or time.monotonic() < self._shut_until:
                return False
            app.send_task(
                name,
                arguments,
                queue=queue,
                ignore_result=True,
                producer=producer,
                add_to_parent=False,
            )
        return True

    def _open(self) -> tuple[Any, ProducerPool]:
        with self._lock:
            if self._opened is None:
                app = self._make_app()
                connection = app.connection_for_write(connect_timeout=1.0)
                connection.transport_options = dict(app.conf.hint_transport_options)
                pool = ProducerPool(connection.Pool(limit=_POOL_LIMIT), limit=_POOL_LIMIT)
                self._opened = app, pool
            return self._opened
