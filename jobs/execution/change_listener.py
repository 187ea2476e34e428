"""Hears which jobs changed, so that a cancel or a pushed result reaches its worker at once.

A hint only: the worker looks by itself every second, so a Redis that is away costs a second and no more.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import redis
import structlog

from gpus.leasing.connect import connect
from jobs.events.announce import SILENCE_SECONDS, channel, read_announcement

log = structlog.get_logger()

AGAIN_SECONDS = 2.0
_SLICE_SECONDS = 1.0


class Listener:
    """Calls `heard` with job ids, from a thread of its own."""

    def __init__(self, url: str, heard: Callable[[Sequence[str]], None]) -> None:
        self._url = url
        self._heard = heard
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
                self._stopping.wait(AGAIN_SECONDS)

    def _listen(self) -> None:
        client: Any = connect(self._url)
        with client.pubsub(ignore_subscribe_messages=True) as subscription:
            subscription.subscribe(channel())
            heard_at, pinged = time.monotonic(), False
            while not self._stopping.is_set():
                # as it came: of RESP 3's answer to a PING `get_message` makes nothing
                message = subscription.parse_response(block=False, timeout=_SLICE_SECONDS)
                if message is not None:
                    heard_at, pinged = time.monotonic(), False
                    if message[0] == "message":
                        self._heard(read_announcement(message[2]))
                elif time.monotonic() - heard_at > SILENCE_SECONDS:
                    if pinged:
                        raise redis.TimeoutError("the subscription's server does not answer")
                    subscription.ping()
                    heard_at, pinged = time.monotonic(), True
