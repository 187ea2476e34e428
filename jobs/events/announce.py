"""Announces changed jobs over Redis pub/sub to event streams, long polls and workers. Best effort.

Listeners read the changes from the database; after a lost announcement they see them at their next poll. So
publishing never raises, and an unavailable Redis costs one short try every few seconds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import redis
import structlog
from redis.backoff import NoBackoff
from redis.retry import Retry

from gpus.leasing.connect import connect

log = structlog.get_logger()

TIMEOUT_SECONDS = 0.2
REST_SECONDS = 4.0
"""Pause after a failed try."""
SILENCE_SECONDS = 2.0
"""Silence after which a subscription sends a PING, and time for its answer: a hung or replaced server does
not close the connection."""
_CHUNK = 500


def channel() -> str:
    """Return the name of the channel; its messages are job ids, separated by spaces."""
    return "jobs:events"


def read_announcement(message: bytes | str) -> list[str]:
    """Return the job ids in a message."""
    text = message.decode("ascii", "replace") if isinstance(message, bytes) else message
    return text.split()


class Announcer:
    """Publishes the ids of changed jobs. url: returns the URL of Redis, read at each call; the connection is
    kept."""

    def __init__(self, url: Callable[[], str]) -> None:
        self._url = url
        self._client: tuple[str, Any] = "", None
        self._resting_until = 0.0

    def __call__(self, job_ids: Sequence[str]) -> None:
        """Publish job ids. Never raises; takes well under 1 ms, or `TIMEOUT_SECONDS` once per
        `REST_SECONDS`."""
        if not job_ids or time.monotonic() < self._resting_until:
            return
        try:
            client = self._connected()
            for start in range(0, len(job_ids), _CHUNK):
                client.publish(channel(), " ".join(job_ids[start : start + _CHUNK]))
        except (redis.RedisError, OSError, ValueError) as error:
            self._resting_until = time.monotonic() + REST_SECONDS
            log.warning("announcement_failed", jobs=len(job_ids), error=str(error))

    def _connected(self) -> Any:
        url = self._url()
        if self._client[0] != url:
            self._client = url, redis_client(url)
        return self._client[1]


def redis_client(url: str) -> Any:
    """Return a client without retries, with short time-outs unless the URL sets others."""
    if url.startswith(("redis+sentinel:", "redis+cluster:")):
        return connect(url, timeout_seconds=TIMEOUT_SECONDS)
    return redis.Redis.from_url(
        url,
        socket_timeout=TIMEOUT_SECONDS,
        socket_connect_timeout=TIMEOUT_SECONDS,
        retry=Retry(NoBackoff(), 0),
    )
