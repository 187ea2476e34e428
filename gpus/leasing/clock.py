"""One wall clock for all hosts: Redis' own, which judges the leases anyway.

A worker whose clock is wrong would else end jobs by deadlines that have not passed, and write times that
nobody else's agree with. Spans are monotonic and need no correction.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import redis
import structlog

from gpus.leasing.connect import connect
from gpus.leasing.scripts import FAILURES
from gpus.protocol import Clock

log = structlog.get_logger(__name__)

ASK_SECONDS = 30.0
TOLERATED_SECONDS = 0.25
"""Less is the noise of asking, and no clock that is kept by NTP is further off."""


class SharedClock:
    """`gpus.protocol.Clock`: this host's, corrected by what Redis says. Until Redis answers, and while it
    does not, the last correction counts.

    redis_time: Redis' clock, seconds since the epoch; raises what is in FAILURES.
    """

    def __init__(self, base: Clock, redis_time: Callable[[], float]) -> None:
        self._base, self._redis_time = base, redis_time
        self._offset = timedelta()

    def now(self) -> datetime:
        return self._base.now() + self._offset

    def monotonic(self) -> float:
        return self._base.monotonic()

    def ask(self) -> None:
        """Never raises."""
        began = self._base.now().timestamp()
        try:
            answer = self._redis_time()
        except FAILURES as error:
            log.info("clock_not_compared", error=str(error))
            return
        ended = self._base.now().timestamp()
        offset = answer - (began + ended) / 2
        is_noise = abs(offset) <= max(TOLERATED_SECONDS, ended - began)
        found = timedelta() if is_noise else timedelta(seconds=offset)
        if abs((found - self._offset).total_seconds()) > TOLERATED_SECONDS:
            log.warning("clock_corrected", seconds=round(found.total_seconds(), 3))
        self._offset = found

    def keep_asking(self, after: Callable[[float, Callable[[], None]], None]) -> None:
        """after: calls once, so many seconds later, in the background."""

        def ask_and_go_on() -> None:
            self.ask()
            after(ASK_SECONDS, ask_and_go_on)

        after(0.0, ask_and_go_on)


def time_of(url: str) -> Callable[[], float]:
    """Asks the Redis at `url`, of a cluster any node."""

    def redis_time() -> float:
        client: Any = connect(url)
        try:
            if isinstance(client, redis.RedisCluster):
                answers: Any = client.time(target_nodes=redis.RedisCluster.RANDOM)
                (answer,) = answers.values()
            else:
                answer = client.time()
        finally:
            client.close()
        seconds, microseconds = answer
        return float(seconds) + float(microseconds) / 1e6

    return redis_time
