"""One wall clock for all hosts: what Redis', the database's and this host's clocks agree on.

A host whose clock is wrong would else end jobs by deadlines that have not passed, and write times that no
other host agrees with. Spans are monotonic and need no correction. docs/adr/0033-one-time.md.
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

ASK_SECONDS = 30.0
UNSURE_SECONDS = 2.0
"""The same while no other clock or process confirms this process' time."""
TOLERATED_SECONDS = 0.25
"""Less is the noise of asking, and no clock that is kept by NTP is further off."""
FRESH_SECONDS = 1.0
"""A comparison this old is new enough for a verdict."""
LEARN_SECONDS = 15.0
"""Three times the period in which living sweepers write the time down."""
REDIS, DATABASE, HOST = "Redis", "the database", "this host"
Ask = Callable[[], float | None]
"""A clock's time, seconds since the epoch; None where it has none of its own."""


@dataclass(frozen=True, slots=True)
class ClockReport:
    """off: clocks that are further from the others than is tolerated; seconds ahead, below zero behind."""

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
    """Says whether the clocks that a verdict would be made by agree."""

    def report(self) -> ClockReport: ...
    def compared(self) -> ClockReport: ...
    def make_sure(self) -> bool: ...
    def is_learning(self) -> bool: ...


class AgreedClocks:
    """Where there is one clock only."""

    def report(self) -> ClockReport:
        return ClockReport()

    compared = report

    def make_sure(self) -> bool:
        return True

    def is_learning(self) -> bool:
        return False


class SharedClock:
    """`gpus.protocol.Clock` and `ClockWatch`. Between two comparisons it goes on by the monotonic clock, so
    that a host whose clock is set does not change it.

    base: this host's clock.
    redis_time, database_time, last_told_time: return a time; without an answer they may raise any exception.
    last_told_time: the time that living processes wrote last, by the clock that they use.
    tolerance_seconds: clocks that are further apart decide nothing final.
    """

    def __init__(
        self,
        base: Clock,
        redis_time: Ask,
        database_time: Ask = lambda: None,
        last_told_time: Ask = lambda: None,
        *,
        tolerance_seconds: float = 5.0,
    ) -> None:
        self._base = base
        self.monotonic = base.monotonic
        self._sources = {REDIS: redis_time, DATABASE: database_time}
        self._last_told_time = last_told_time
        self._tolerance = tolerance_seconds
        self._set: tuple[datetime, float] | None = None
        """The time, and the monotonic time at which it was that."""
        self._is_sure = False
        """Whether two clocks agreed once, or living processes told the time."""
        self._told: tuple[float | None, float] | None = None
        """The answer to the last question for the told time, and when it came, monotonic."""
        self._report = ClockReport()
        self._began_at: float | None = None
        """When this process first compared, monotonic."""
        self._compared_at: float | None = None
        self._lock = threading.Lock()

    def now(self) -> datetime:
        if self._set is None:
            return self._base.now()
        at, monotonic = self._set
        return at + timedelta(seconds=self._base.monotonic() - monotonic)

    def report(self) -> ClockReport:
        """What the last comparison found; at most half a minute old where `keep_asking` was called."""
        return self._report

    def compared(self) -> ClockReport:
        """Compares again, unless that was done a moment ago. For verdicts that cannot be taken back."""
        with self._lock:
            at = self._compared_at
            if at is None or not 0 <= self._base.monotonic() - at < FRESH_SECONDS:
                self._ask()
            return self._report

    def make_sure(self) -> bool:
        """Compares again where this process knows the time from one clock alone, before work whose times
        others go by: a clock that could not be asked at its start may answer by now. Whether two clocks, or
        the processes that live, have told it the time."""
        if not self._is_sure:
            self.compared()
        return self._is_sure

    def is_learning(self) -> bool:
        """Whether this process is new, knows only clocks that differ, and may still learn the time from those
        that live. Compares again while it is new."""
        began_at = self._began_at
        is_new = began_at is None or self._base.monotonic() - began_at < LEARN_SECONDS
        return is_new and not self.make_sure() and not self._report.agree

    def ask(self) -> None:
        """Never raises."""
        with self._lock:
            self._ask()

    def _ask(self) -> None:
        ahead, noise = {HOST: 0.0}, TOLERATED_SECONDS
        for name, source in self._sources.items():
            at, began = self._base.now().timestamp(), self._base.monotonic()
            try:
                answer = source()
            except Exception as error:
                # a clock that can't be asked stops nobody: the others go on
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
        self._tell(ahead)
        best = self._best(ahead)
        if best is None:
            return  # goes on by the monotonic clock from what was right last
        here = self._base.now()
        now_ahead = (self.now() - here).total_seconds()
        # what is told now is as good as a slow answer, which would take a right correction back
        found = next((one for one in (now_ahead, 0.0) if abs(best - one) <= noise), best)
        monotonic, corrected = self._base.monotonic(), here + timedelta(seconds=found)
        if abs((corrected - self.now()).total_seconds()) > max(TOLERATED_SECONDS, noise):
            log.warning("clock_corrected", seconds=round(found, 3))
        self._set = (corrected, monotonic)

    def _best(self, ahead: dict[str, float]) -> float | None:
        """How far ahead of this host the right time is: two of the clocks say so, or the processes that live.
        None: nobody knows, and this process has a time.

        A new process that can ask nobody goes by the clock that all writers of its database share: the
        database's own, or with SQLite this host's."""
        middle = median_low(ahead.values())
        if sum(abs(seconds - middle) <= self._tolerance for seconds in ahead.values()) > 1:
            self._is_sure = True
            return ahead.get(REDIS, middle) if len(ahead) == 2 else middle
        if self._is_sure:
            return None
        told = self._told_by_the_living(ahead)
        self._is_sure = told is not None
        return ahead.get(DATABASE, ahead[HOST]) if told is None else told

    def _told_by_the_living(self, ahead: dict[str, float]) -> float | None:
        """How far ahead the time of those processes is that wrote one since this was last asked; None: none
        did, as far as is known. What was written before may be of any age."""
        asked_at, before = self._base.monotonic(), self._told
        try:
            told = self._last_told_time()
        except Exception as error:
            log.info("clock_not_compared", clock="other processes", error=str(error))
            return None
        self._told = told, asked_at
        if told is None or before is None or before[0] == told:
            return None
        seconds = told - self._base.now().timestamp()
        nearest = min(ahead.values(), key=lambda one: abs(one - seconds))
        is_theirs = abs(nearest - seconds) <= self._tolerance + asked_at - before[1]
        return nearest if is_theirs else seconds

    def _tell(self, ahead: dict[str, float]) -> None:
        """Of two clocks nobody can say which one is wrong: the other one is named."""
        middle = median_low(ahead.values()) if len(ahead) > 2 else 0.0
        off = {name: seconds - middle for name, seconds in ahead.items()}
        report = ClockReport({name: by for name, by in off.items() if abs(by) > self._tolerance})
        if set(report.off) != set(self._report.off):
            if report.agree:
                log.info("clocks_agree_again")
            else:
                log.warning("clocks_disagree", off={name: round(by, 1) for name, by in report.off.items()})
        self._report = report

    def keep_asking(self, after: Callable[[float, Callable[[], None]], None]) -> None:
        """after: calls once, so many seconds later, in the background."""

        def ask_and_go_on() -> None:
            self.ask()
            after(ASK_SECONDS if self._is_sure or self._report.agree else UNSURE_SECONDS, ask_and_go_on)

        after(0.0, ask_and_go_on)


def time_of(url: str) -> Callable[[], float]:
    """Asks the Redis at `url`, of a cluster any node."""

    def redis_time() -> float:
        client: Any = connect(url)
        try:
            is_cluster = isinstance(client, redis.RedisCluster)
            # of one node: by its name, or alone, as the version of redis-py has it
            answer = client.time(target_nodes=redis.RedisCluster.RANDOM) if is_cluster else client.time()
            if isinstance(answer, dict):
                [answer] = answer.values()
        finally:
            client.close()
        seconds, microseconds = answer
        return float(seconds) + float(microseconds) / 1e6

    return redis_time
