"""Announces changed jobs over Redis pub/sub to event streams, long polls and workers, and listens for them.
Best effort.

Listeners read the changes from the database; after a lost announcement they see them at their next poll. So
publishing never raises, and an unavailable Redis costs one short try every few seconds.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
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
MAX_UNDER_WAY = 10_000
"""Own announcements that have not come back yet; beyond this, they never will (Redis is away)."""
LISTEN_AGAIN_SECONDS = 2.0
LISTEN_SLICE_SECONDS = 1.0
_CHUNK = 500


def channel() -> str:
    """Return the name of the channel; its messages are job ids, separated by spaces."""
    return "jobs:events"


def read_announcement(message: bytes | str) -> list[str]:
    """Return the job ids in a message."""
    text = message.decode("ascii", "replace") if isinstance(message, bytes) else message
    return text.split()


class Announcer:
    """Publishes the ids of changed jobs. url: of Redis; the connection is made at the first call and kept."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._client: Any = None
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
        if self._client is None:
            self._client = redis_client(self._url)
        return self._client


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


class SelfNotifications:
    """Distinguishes a worker's own announcements, which come back by publish/subscribe, from those of others.

    A hint only: after a lost announcement, the next one of that job by another process counts as own; the
    worker polls every second anyway. Thread-safe.
    """

    def __init__(self, max_under_way: int = MAX_UNDER_WAY) -> None:
        self._max_under_way = max_under_way
        self._lock = threading.Lock()
        self._under_way: Counter[str] = Counter()

    def tracking(self, announce: Callable[[Sequence[str]], None]) -> Callable[[Sequence[str]], None]:
        """Return `announce`, wrapped so that its announcements count as own."""

        def announce_and_count(job_ids: Sequence[str]) -> None:
            with self._lock:
                if len(self._under_way) > self._max_under_way:  # Redis is away: none comes back
                    self._under_way.clear()
                self._under_way.update(job_ids)
            announce(job_ids)

        return announce_and_count

    def from_others(self, job_ids: Sequence[str]) -> set[str]:
        """Return the received job ids that other processes announced."""
        others = set()
        with self._lock:
            for job_id in job_ids:
                count = self._under_way.pop(job_id, 0)
                if count == 0:
                    others.add(job_id)
                elif count > 1:
                    self._under_way[job_id] = count - 1
        return others


class Listener:
    """Subscribes to announcements of jobs in Redis, in a thread of its own.

    on_jobs: called with the ids of announced jobs. While Redis is away a cancel takes up to a second longer.
    silence_seconds: as `SILENCE_SECONDS`. again_seconds: pause after Redis was lost.
    """

    def __init__(
        self,
        url: str,
        on_jobs: Callable[[Sequence[str]], None],
        *,
        silence_seconds: float = SILENCE_SECONDS,
        again_seconds: float = LISTEN_AGAIN_SECONDS,
    ) -> None:
        self._url = url
        self._silence_seconds, self._again_seconds = silence_seconds, again_seconds
        self._slice_seconds = min(LISTEN_SLICE_SECONDS, silence_seconds / 2)
        self._on_jobs = on_jobs
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="job-listener", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(5.0)

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self._listen()
            except (redis.RedisError, OSError) as error:
                log.warning("listener_lost_redis", error=str(error))
                self._stopping.wait(self._again_seconds)

    def _listen(self) -> None:
        client: Any = connect(self._url)
        with client.pubsub(ignore_subscribe_messages=True) as subscription:
            subscription.subscribe(channel())
            received_at, pinged = time.monotonic(), False
            while not self._stopping.is_set():
                # not `get_message`, which drops the answer to a PING under RESP 3
                message = subscription.parse_response(block=False, timeout=self._slice_seconds)
                if message is not None:
                    received_at, pinged = time.monotonic(), False
                    if message[0] == "message":
                        self._on_jobs(read_announcement(message[2]))
                elif time.monotonic() - received_at > self._silence_seconds:
                    if pinged:
                        raise redis.TimeoutError("the subscription's server does not answer")
                    subscription.ping()
                    received_at, pinged = time.monotonic(), True
