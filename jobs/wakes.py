"""Publishes all Celery messages: wakes, hints that callbacks are due, ticks of sweeps.

All of them are hints: a sweep repairs lost ones within seconds, and repeated ones do no harm. So no function
here raises or waits long: a publish ends within `PUBLISH_POLICY` × the time-outs of `publish_options` (three
seconds), and after a failure there is a pause, so that a dead broker does not slow submits. No message has an
expiry, which Celery would judge by the receiver's wall clock; queues without a consumer are bounded in length
(`dispatcher_project.celery_transport.broker`).
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

WORK, DELIVER, SWEEP, FOLLOW = "jobs.work", "jobs.deliver", "jobs.sweep", "jobs.follow"
CALLBACKS_QUEUE, SWEEPS_QUEUE, WORKFLOWS_QUEUE = "callbacks", "sweeps", "workflows"

SHUT_SECONDS = 2.0
"""Pause after a failed publish; the `fill` sweep sends missing wakes every two seconds."""
TOTAL_SECONDS = 3.0
"""The longest one call may take."""
MAX_FOLLOWERS = 100
"""Followers that one message names."""
_POOL_LIMIT = 8


def queue_of(pool: str, host: str | None = None) -> str:
    """Return ``gpu.<pool>``, or ``gpu.<pool>.<host>`` for the worker that is pinned to that host."""
    return f"gpu.{pool}" if host is None else f"gpu.{pool}.{host}"


class HintPublisher:
    """Publishes hints through connections of its own, whose time-outs are shorter than a consumer's.

    app: returns the Celery app, called at the first publish. Its `hint_transport_options` are for these
    connections.
    """

    def __init__(self, app: Callable[[], Any]) -> None:
        self._make_app = app
        self._lock = threading.Lock()
        self._opened: tuple[Any, ProducerPool] | None = None
        self._shut_until = 0.0

    def send_wakes(self, wakes: Sequence[Wakes]) -> int:
        """Send wakes to GPU workers; return how many were sent, fewer if the broker is away."""
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
        """Send hints that these outbox rows are due."""
        self._publish((DELIVER, [callback_id], CALLBACKS_QUEUE) for callback_id in callback_ids)

    def wake_followers(self, followers: Sequence[str]) -> None:
        """Send hints that these followers of jobs (``run:ID``) have notices of ends, many in one message."""
        names = list(followers)
        self._publish(
            (FOLLOW, names[first : first + MAX_FOLLOWERS], WORKFLOWS_QUEUE)
            for first in range(0, len(names), MAX_FOLLOWERS)
        )

    def wake_sweep(self, name: str) -> bool:
        """Start a sweep; ``tick``: all that are due. Return False if the message was not sent."""
        return self._publish([(SWEEP, [name], SWEEPS_QUEUE)]) == 1

    def _publish(self, messages: Iterable[tuple[str, list[str], str]]) -> int:
        """Send messages: task name, arguments, queue. Return how many were sent."""
        sent = 0
        until = time.monotonic() + TOTAL_SECONDS
        name = queue = ""
        try:
            for name, arguments, queue in messages:
                if not self._send(name, arguments, queue, until):
                    break
                sent += 1
        except Exception as error:  # only the hint is lost
            self._shut_until = time.monotonic() + SHUT_SECONDS
            log.warning("wake_not_sent", task=name, queue=queue, error=str(error), kind=type(error).__name__)
        return sent

    def _send(self, name: str, arguments: list[str], queue: str, until: float) -> bool:
        if time.monotonic() < self._shut_until:
            return False
        app, producers = self._open()
        with producers.acquire(block=True, timeout=TOTAL_SECONDS) as producer:
            # meanwhile another publish may have failed, and the pause begun
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
