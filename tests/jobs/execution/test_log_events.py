"""Log lines of a run as events: how often, how much, and in which order."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import pytest

from foundation.log_lines import LogLine, LogPart, RateLimit, lines_left_out
from jobs.execution.log_events import FREE_CHARS, LINE_OVERHEAD, MAX_EVENT_CHARS, LogEvents, LogLimits
from tests.support.fakes import ManualClock

PLENTY = RateLimit(1e12, 1e12)


class Buffer:
    def __init__(
        self,
        *,
        allowance: int = 256 * 1024,
        lines: float = 50.0,
        chars: int = 2000,
        shared: RateLimit = PLENTY,
    ) -> None:
        self.clock, self.open = ManualClock(), True
        self.written: list[tuple[float, Mapping[str, Any]]] = []
        self.log = LogEvents(
            lambda kind, data: self.written.append((self.clock.elapsed, data)),
            self.clock,
            LogLimits(allowance, lines, chars, shared),
            rest_seconds=0.5,
            may_write=lambda: self.open,
        )

    def say(self, *texts: str, every: float = 0.0, **fields: Any) -> None:
        for text in texts:
            self.clock.move(every)
            self.log.add(LogPart([LogLine("stdout", text, **fields)]))

    @property
    def lines(self) -> list[Mapping[str, Any]]:
        return [line for _, data in self.written for line in data["lines"]]

    @property
    def texts(self) -> list[str]:
        return [line["text"] for line in self.lines]

    @property
    def chars(self) -> int:
        return sum(len(text) for text in self.texts)


def test_lines_are_joined_and_written_at_intervals() -> None:
    buffer = Buffer()
    buffer.say(*map(str, range(24)), every=0.125)
    buffer.log.end()
    assert buffer.texts == [str(number) for number in range(24)]
    assert [round(at, 1) for at, _ in buffer.written] == [0.5, 1.0, 1.5, 2.0, 2.5, 3.0]
    assert [data["part"] for _, data in buffer.written] == [1, 2, 3, 4, 5, 6]


def test_the_pauses_of_a_long_run_grow() -> None:
    """Otherwise an hour of lines would be 7,200 rows of a job."""
    buffer = Buffer()
    buffer.say(*map(str, range(1200)), every=0.5)
    assert len(buffer.written) < 200
    assert buffer.written[-1][0] - buffer.written[-2][0] == 5.0


def test_a_run_that_ends_at_once_writes_its_lines() -> None:
    buffer = Buffer()
    buffer.say("hello")
    assert buffer.written == []
    buffer.log.end()
    assert buffer.texts == ["hello"]


def test_a_line_of_a_long_run_is_written_within_seconds() -> None:
    buffer = Buffer()
    buffer.clock.move(36_000)
    buffer.say("late")
    buffer.clock.move(5.0)
    buffer.log.write_if_due()
    assert buffer.texts == ["late"]


def test_lines_beyond_the_rate_are_counted_where_they_are_missing() -> None:
    buffer = Buffer(lines=1.0)
    buffer.say(*["x"] * 25)
    buffer.say("later", every=5.0)
    buffer.log.end()
    assert buffer.texts == [*["x"] * 10, "… 15 lines left out", "later"]
    assert buffer.lines[10]["left_out"] == 15


def test_lines_left_out_before_are_counted_too() -> None:
    buffer = Buffer()
    buffer.log.add(LogPart([lines_left_out(7), LogLine("log", "x")]))
    buffer.log.add(LogPart([lines_left_out(1)]))
    buffer.log.end()
    assert buffer.texts == ["… 7 lines left out", "x", "… 1 line left out"]


def test_all_runs_of_a_worker_share_a_rate_beside_their_first_lines() -> None:
    shared = RateLimit(100.0, 5 * 2000)
    buffers = [Buffer(shared=shared) for _ in range(4)]
    for buffer in buffers:
        buffer.say(*["x" * (2000 - LINE_OVERHEAD)] * 6)
        buffer.log.end()
    whole = [sum(text.startswith("xx") for text in buffer.texts) for buffer in buffers]
    free = FREE_CHARS // 2000
    assert sum(whole) == 5 + 4 * free
    assert min(whole) == free, "the first runs have used up the rate"


@pytest.mark.parametrize("size", [0, 1, 100, 1999])
def test_a_jobs_log_is_bounded_and_keeps_its_beginning_and_its_end(size: int) -> None:
    buffer = Buffer(allowance=20_000, lines=1e9)
    for number in range(5000):
        buffer.say(f"{number}:" + "x" * size, every=0.1)
    buffer.log.end("Traceback\nValueError: boo")
    assert buffer.chars < 20_000
    assert buffer.texts[0].startswith("0:")
    assert buffer.texts[-2:] == ["Traceback", "ValueError: boo"]
    assert len(buffer.written) <= 20_000 // 256 + 3, "rows"
    assert sum("at most" in text for text in buffer.texts) == 1
    shown = sum(":" in text and "xx" in text for text in buffer.texts) if size > 1 else None
    if shown is not None:
        assert shown + sum(line.get("left_out", 0) for line in buffer.lines) == 5000


def test_an_event_is_bounded_while_the_database_is_slow() -> None:
    buffer = Buffer(lines=1e9)
    buffer.open = False
    buffer.say(*["x" * 1000] * 200, every=0.1)
    assert buffer.written == []
    buffer.open = True
    buffer.say("on", every=1.0)
    buffer.log.end()
    assert all(
        sum(len(line["text"]) for line in data["lines"]) <= MAX_EVENT_CHARS for _, data in buffer.written
    )
    assert sum(line.get("left_out", 0) for line in buffer.lines) == 200 - buffer.texts.count("x" * 1000)


def test_a_long_line_is_cut() -> None:
    buffer = Buffer(chars=50)
    buffer.say("x" * 10_000)
    buffer.log.end()
    assert buffer.texts == ["x" * 49 + "…"]


def test_times_go_neither_back_nor_beyond_now() -> None:
    buffer = Buffer()
    now = buffer.clock.now().timestamp()
    for at in (now - 5, now + 3600, now - 100, 1e18, None):
        buffer.say("x", at=at)
    buffer.clock.move(1.0)
    buffer.say("y", at=now - 1)
    buffer.log.end()
    times = [datetime.fromisoformat(line["at"]).timestamp() - now for line in buffer.lines]
    assert times == sorted(times)
    assert times[0] == pytest.approx(-5, abs=0.01)
    assert max(times) <= 1.0


def test_nothing_is_written_after_the_end() -> None:
    buffer = Buffer()
    buffer.say("one")
    buffer.log.end()
    buffer.say("two")
    buffer.log.end("trace")
    buffer.clock.move(10)
    buffer.log.write_if_due()
    assert buffer.texts == ["one"]


def test_a_bad_part_does_not_fail_the_run() -> None:
    buffer = Buffer()
    buffer.log.add("no part")  # type: ignore[arg-type]
    buffer.say("one")
    buffer.log.end()
    assert buffer.texts == ["one"]


def test_the_position_in_the_servers_log_is_stored() -> None:
    buffer = Buffer()
    buffer.log.add(LogPart([LogLine("stdout", "x")], seen=12))
    buffer.log.end()
    assert buffer.written[0][1]["seen"] == 12
