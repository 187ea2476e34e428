"""One wall clock for all hosts, from the clocks of Redis, the database and this host.

Otherwise a host with a wrong clock would end jobs before their deadlines and write times that other hosts
contradict. Durations are monotonic and need no correction. Decision: docs/adr/0033-fleet-wide-clock.md.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from statistics import median_low
from typing import Any, Protocol

import redis
import structlog

from gpus.leasing.connect import connect
from gpus.protocol import Clock

log = structlog.get_logger(__name__)

COMPARE_SECONDS = 30.0
UNCONFIRMED_SECONDS = 2.0
"""Period of comparisons while no other clock or process confirms this process' time."""
TOLERATED_SECONDS = 0.25
"""Smaller differences are measurement noise; clocks under NTP stay below this."""
FRESH_SECONDS = 1.0
"""A comparison of this age still counts for `fresh_report`."""
LEARN_SECONDS = 15.0
"""How long a new process may learn the time from peers: three periods in which live sweepers write it."""
REDIS, DATABASE, HOST = "Redis", "the database", "this host"
ReadClock = Callable[[], float | None]
"""Returns a clock's time, seconds since the epoch, or None if it has no clock of its own."""


@dataclass(frozen=True, slots=True)
class ClockReport:
    """Result of a comparison.

    off: clocks that differ from the others by more than the tolerance; seconds ahead, negative behind.
    """

    off: Mapping[str, float] = field(default_factory=dict)

    @property
    def agree(self) -> bool:
        return not self.off

    def __str__(self) -> str:
        if self.agree:
            return "clocks agree"
        return ", ".join(
            f"the clock of {name} is {abs(seconds):.0f} s {'ahead' if seconds > 0 else 'behind'}"
            for name, seconds in self.off.items()
        )


class ClockWatch(Protocol):
    """Reports whether the clocks agree, before a decision that cannot be undone. See `SharedClock`."""

    def report(self) -> ClockReport: ...
    def fresh_report(self) -> ClockReport: ...
    def confirm_time(self) -> bool: ...
    def is_learning(self) -> bool: ...


class AgreedClocks:
    """A `ClockWatch` for a system with a single clock."""

    def report(self) -> ClockReport:
        return ClockReport()

    fresh_report = report

    def confirm_time(self) -> bool:
        return True

    def is_learning(self) -> bool:
        return False


class SharedClock:
    """Implements `gpus.protocol.Clock` and `ClockWatch`.

    Between two comparisons it advances by the monotonic clock, so that setting the host's clock does not
    change it. base: this host's clock. redis_time, database_time: read those clocks; may raise any exception.
    peer_time: reads the time that live processes wrote last. tolerance_seconds: differences above this are
    reported, and no final decision is made then.
    """

    def __init__(
        self,
        base: Clock,
        redis_time: ReadClock,
        database_time: ReadClock = lambda: None,
        peer_time: ReadClock = lambda: None,
        *,
        tolerance_seconds: float = 5.0,
    ) -> None:
        self._base = base
        self.monotonic = base.monotonic
        self._sources = {REDIS: redis_time, DATABASE: database_time}
        self._peer_time = peer_time
        self._tolerance = tolerance_seconds
        self._set: tuple[datetime, float] | None = None
        """The corrected time, and the monotonic time at which it was valid."""
        self._is_confirmed = False
        """Whether two clocks agreed once, or live peers confirmed the time."""
        self._peer_read: tuple[float | None, float] | None = None
        """The last peer time, and when it was read, monotonic."""
        self._report = ClockReport()
        self._began_at: float | None = None
        """Monotonic time of the first comparison."""
        self._compared_at: float | None = None
        self._lock = threading.Lock()

    def now(self) -> datetime:
        if self._set is None:
            return self._base.now()
        at, monotonic = self._set
        return at + timedelta(seconds=self._base.monotonic() - monotonic)

    def report(self) -> ClockReport:
        """The last comparison's report; at most half a minute old after `keep_comparing`."""
        return self._report

    def fresh_report(self) -> ClockReport:
        """A report of at most FRESH_SECONDS, for decisions that cannot be undone. Compares again if
        needed."""
        with self._lock:
            at = self._compared_at
            if at is None or not 0 <= self._base.monotonic() - at < FRESH_SECONDS:
                self._compare()
            return self._report

    def confirm_time(self) -> bool:
        """Return whether two clocks, or live peers, have confirmed this process' time; compare again if not.

        Called before work that writes times: a clock that did not answer at the start may answer by now.
        """
        if not self._is_confirmed:
            self.fresh_report()
        return self._is_confirmed

    def is_learning(self) -> bool:
        """Whether this process is new, its clocks differ, and it may still learn the time from live peers.

        Compares again while the process is new.
        """
        began_at = self._began_at
        is_new = began_at is None or self._base.monotonic() - began_at < LEARN_SECONDS
        return is_new and not self.confirm_time() and not self._report.agree

    def compare(self) -> None:
        """Compare the clocks and correct the time. Never raises."""
        with self._lock:
            self._compare()

    def _compare(self) -> None:
        ahead, noise = {HOST: 0.0}, TOLERATED_SECONDS
        for name, source in self._sources.items():
            at, began = self._base.now().timestamp(), self._base.monotonic()
            try:
                answer = source()
            except Exception as error:
                # a clock that does not answer is left out of the comparison
                log.info("clock_not_compared", clock=name, error=str(error))
                continue
            took = self._base.monotonic() - began
            if answer is not None:
                ahead[name] = answer - (at + took / 2)
                noise = max(noise, took)
        self._compared_at = self._base.monotonic()
        if self._began_at is None:
            self._began_at = self._compared_at
        if len(ahead) > 1:
            self._correct(ahead, noise)

    def _correct(self, ahead: dict[str, float], noise: float) -> None:
        self._update_report(ahead)
        best = self._best(ahead)
        if best is None:
            return  # continues by the monotonic clock from the last right time
        here = self._base.now()
        now_ahead = (self.now() - here).total_seconds()
        # within the noise the present correction stays: a slow answer must not undo it
        found = next((one for one in (now_ahead, 0.0) if abs(best - one) <= noise), best)
        monotonic, corrected = self._base.monotonic(), here + timedelta(seconds=found)
        if abs((corrected - self.now()).total_seconds()) > max(TOLERATED_SECONDS, noise):
            log.warning("clock_corrected", seconds=round(found, 3))
        self._set = (corrected, monotonic)

    def _best(self, ahead: dict[str, float]) -> float | None:
        """Seconds by which the right time is ahead of this host, by two clocks that agree or by live peers.

        None: unknown, and this process has a confirmed time already. A new process without peers uses the
        clock that all writers of its database share: the database's own, or this host's with SQLite.
        """
        middle = median_low(ahead.values())
        if sum(abs(seconds - middle) <= self._tolerance for seconds in ahead.values()) > 1:
            self._is_confirmed = True
            return ahead.get(REDIS, middle) if len(ahead) == 2 else middle
        if self._is_confirmed:
            return None
        peer = self._peer_offset(ahead)
        self._is_confirmed = peer is not None
        return ahead.get(DATABASE, ahead[HOST]) if peer is None else peer

    def _peer_offset(self, ahead: dict[str, float]) -> float | None:
        """Seconds by which the time of live peers is ahead of this host, or None without live peers.

        Live peers have written a time since the last read; an unchanged time may be of any age.
        """
        asked_at, before = self._base.monotonic(), self._peer_read
        try:
            peer = self._peer_time()
        except Exception as error:
            log.info("clock_not_compared", clock="other processes", error=str(error))
            return None
        self._peer_read = peer, asked_at
        if peer is None or before is None or before[0] == peer:
            return None
        seconds = peer - self._base.now().timestamp()
        nearest = min(ahead.values(), key=lambda one: abs(one - seconds))
        is_theirs = abs(nearest - seconds) <= self._tolerance + asked_at - before[1]
        return nearest if is_theirs else seconds

    def _update_report(self, ahead: dict[str, float]) -> None:
        """Compute the report. Of two clocks that differ, the other one is reported, not this host's."""
        middle = median_low(ahead.values()) if len(ahead) > 2 else 0.0
        off = {name: seconds - middle for name, seconds in ahead.items()}
        report = ClockReport({name: by for name, by in off.items() if abs(by) > self._tolerance})
        if set(report.off) != set(self._report.off):
            if report.agree:
                log.info("clocks_agree_again")
            else:
                log.warning("clocks_disagree", off={name: round(by, 1) for name, by in report.off.items()})
        self._report = report

    def keep_comparing(self, after: Callable[[float, Callable[[], None]], None]) -> None:
        """Compare now and then periodically in the background. after: schedules one call after so many
        seconds."""

        def compare_and_repeat() -> None:
            self.compare()
            after(
                COMPARE_SECONDS if self._is_confirmed or self._report.agree else UNCONFIRMED_SECONDS,
                compare_and_repeat,
            )

        after(0.0, compare_and_repeat)


def time_of(url: str) -> Callable[[], float]:
    """A `ReadClock` for the Redis at `url`; for a cluster, of any node."""

    def redis_time() -> float:
        client: Any = connect(url)
        try:
            is_cluster = isinstance(client, redis.RedisCluster)
            # some versions of redis-py return a dict by node, others the single answer
            answer = client.time(target_nodes=redis.RedisCluster.RANDOM) if is_cluster else client.time()
            if isinstance(answer, dict):
                [answer] = answer.values()
        finally:
            client.close()
        seconds, microseconds = answer
        return float(seconds) + float(microseconds) / 1e6

    return redis_time
