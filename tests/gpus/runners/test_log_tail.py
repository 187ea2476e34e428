"""The `logs` of answers: each line once, whatever a server sends."""

from __future__ import annotations

from typing import Any

import pytest

from gpus.runners.log_tail import MAX_LINES, LogTail


def texts(tail: LogTail, logs: Any, *, last: bool = False, **others: Any) -> list[str]:
    part = tail.read({"logs": logs, **others}, is_last=last)
    return [line.text for line in part.lines] if part else []


def test_a_whole_text_is_read_once() -> None:
    tail = LogTail()
    assert texts(tail, "") == []
    assert texts(tail, "one\ntw") == ["one"], "the second line is not whole"
    assert texts(tail, "one\ntwo\n") == ["two"]
    assert texts(tail, "one\ntwo\n") == []
    assert texts(tail, "one\ntwo\n\nfour", last=True) == ["", "four"]


def test_equal_lines_are_not_taken_for_one() -> None:
    tail = LogTail()
    found = [len(texts(tail, "tick\n" * count)) for count in (10, 300, 301, 900)]
    assert found == [10, 290, 1, 599]


def test_the_end_of_a_text_goes_on_where_it_was_read() -> None:
    lines = [f"line {number}\n" for number in range(500)]
    tail, found = LogTail(), []
    for count in range(5, 500, 5):
        found += texts(tail, "".join(lines[max(0, count - 60) : count]))
    assert found == [line.strip() for line in lines[:495]]


def test_logs_that_shrink_were_begun_anew() -> None:
    tail = LogTail()
    assert texts(tail, "a long first log\nof two lines\n")
    assert texts(tail, "second\n") == ["second"]
    assert texts(tail, "") == []
    assert texts(tail, "third\n") == ["third"]


def test_a_text_with_an_offset_is_read_once() -> None:
    tail = LogTail()
    assert texts(tail, "one\n", logs_offset=0) == ["one"]
    assert texts(tail, "two\n", logs_offset=4) == ["two"]
    assert texts(tail, "two\nthree\n", logs_offset=4) == ["three"]
    assert tail.seen == 14


def test_a_list_is_read_once_and_gaps_are_counted() -> None:
    tail = LogTail()
    assert texts(tail, ["a", "b"]) == ["a", "b"]
    assert texts(tail, ["a", "b", "c"]) == ["c"]
    assert texts(tail, ["d"], logs_offset=3) == ["d"]
    assert texts(tail, ["h"], logs_offset=7) == ["… 3 lines left out", "h"]
    assert texts(tail, ["h"], logs_offset=7) == []


def test_the_end_of_a_list_goes_on_where_it_was_read() -> None:
    tail, found = LogTail(), []
    for count in range(3, 100, 3):
        found += texts(tail, [f"line {number}" for number in range(max(0, count - 20), count)])
    assert found == [f"line {number}" for number in range(99)]


def test_another_worker_goes_on_at_the_stored_position() -> None:
    assert texts(LogTail(seen=4), "one\ntwo\n") == ["two"]
    assert texts(LogTail(seen=2), ["a", "b", "c"]) == ["c"]
    assert texts(LogTail(seen=2), ["c"], logs_offset=2) == ["c"]
    assert texts(LogTail(seen=100), "short\n") == [], "not twice"


def test_a_huge_log_is_bounded_and_counted() -> None:
    tail = LogTail()
    part = tail.read({"logs": "x" * 99 + "\n" + "0123456789\n" * 1_000_000}, is_last=False)
    assert part is not None
    assert len(part.lines) == MAX_LINES + 1
    assert part.lines[0].left_out + MAX_LINES == 1_000_001
    assert texts(LogTail(), ["y"] * 100_000)[0] == f"… {100_000 - MAX_LINES} lines left out"


def test_a_server_may_change_its_mind_about_the_form() -> None:
    tail = LogTail()
    assert texts(tail, "one\ntwo\n") == ["one", "two"]
    assert texts(tail, ["three"]) == ["three"]
    assert texts(tail, "four\n") == ["four"]


def test_a_line_of_50_mb_is_cut() -> None:
    (text,) = texts(LogTail(), "x" * 50_000_000)
    assert len(text) <= 4096


SIGNED = "http://box/store/a/7/ab?expires=9&signature=SECRET&x=1"


@pytest.mark.parametrize("cut", ["&sign", "signature=", "SEC"])
def test_a_signature_that_is_cut_by_two_reads_of_a_long_line_is_left_out(cut: str) -> None:
    first, _, second = SIGNED.partition(cut)
    log = "x" * 5000 + first + cut
    tail = LogTail()
    assert texts(tail, log)
    assert texts(tail, f"{log}{second}\n") == [second.replace("SECRET", "…").removeprefix("RET")]
    another = LogTail(seen=len(log))
    assert "RET" not in str(texts(another, f"{log}{second}\n"))
    offset = LogTail()
    assert texts(offset, log)
    assert "RET" not in str(texts(offset, f"{second}\n", logs_offset=len(log)))


def test_a_huge_log_is_read_from_a_whole_line_on() -> None:
    """Else it may begin in the middle of a signature."""
    left_out, *lines = texts(LogTail(), f"{SIGNED} {'x' * 1000}\n" * 1000)
    assert (left_out, len(lines)) == ("… 752 lines left out", 248)
    assert all(line.startswith("http://") for line in lines)


@pytest.mark.parametrize("logs", [None, 5, {"a": 1}, [None, 5, [], {"text": 3}], [["x"]]])
def test_an_answer_that_is_not_a_log_has_no_lines(logs: Any) -> None:
    assert texts(LogTail(), logs) == []


@pytest.mark.parametrize("offset", [-1, 2**60, "3", None, True, 1.5])
def test_a_bad_offset_is_none(offset: Any) -> None:
    assert texts(LogTail(), "one\n", logs_offset=offset) == ["one"]


def test_progress_bars_and_colours_are_plain() -> None:
    assert texts(LogTail(), "\x1b[32m 10%\r 50%\r100%\x1b[0m\nforged\0\n") == ["100%", r"forged\x00"]
