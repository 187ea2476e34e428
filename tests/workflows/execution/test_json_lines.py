"""JSON lines are read in pieces, however they are cut; a bad line is named."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from workflows.execution.json_lines import GROUP, BadLine, Scan, TooManyLines, items_from

MOST = 1_000
TEXTS = st.text('ab\n\r"\\ ä€😀', max_size=5)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**40), 2**40) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=5,
)


def pieces(data: bytes, size: int) -> Iterator[bytes]:
    return (data[at : at + size] for at in range(0, len(data), size))


def scanned(
    data: bytes,
    size: int = 7,
    scan: Scan | None = None,
    *,
    most_items: int = MOST,
    most_line_bytes: int = MOST,
) -> Scan:
    """Read all steps, each as after a crash: from the offset that was kept."""
    scan = scan or Scan()
    while not scan.is_over:
        scan = replace(scan, starts=list(scan.starts))
        scan.read_on(
            pieces(data[scan.offset :], size), most_items=most_items, most_line_bytes=most_line_bytes
        )
    return scan


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    values=st.lists(JSON, max_size=12),
    ends=st.lists(st.sampled_from(["\n", "\r\n", "\n\n", "\n  \n"]), min_size=12, max_size=12),
    size=st.integers(1, 40),
    step=st.integers(1, 4),
    has_last_end=st.booleans(),
)
def test_each_item_is_found_by_its_index(
    values: list[object], ends: list[str], size: int, step: int, has_last_end: bool
) -> None:
    lines = [json.dumps(value, ensure_ascii=False) for value in values]
    data = "".join(line + end for line, end in zip(lines, ends, strict=False)).encode()
    data = data if has_last_end else data.rstrip(b"\r\n ")
    scan = scanned(data, size, Scan(group=3, step_lines=step))
    assert scan.items == len(values)
    for first in range(len(values)):
        for last in range(first, len(values)):
            if last // 3 != first // 3:
                continue
            at = scan.starts[first // 3]
            chunks = pieces(data[at[0] :], size)
            found = items_from(chunks, at, first, last, most_line_bytes=MOST, group=3)
            assert found == {index: values[index] for index in range(first, last + 1)}


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b"{", "not JSON"),
        (b"[1", "not JSON"),
        (b"1 2", "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b'"\xc3"', "not JSON"),
        (b"NaN", "not JSON"),
        (b"1e999", "not JSON"),
        (b"9" * 400, "not JSON"),
        (b"[" * 70 + b"]" * 70, "nested more than 64"),
        (b'"\\u0000"', "NUL"),
        (b'"\\ud800"', "surrogate"),
        (b'{"\\udfff": 1}', "surrogate"),
        (b'"' + b"x" * 1_000 + b'"', "more than 1000 bytes"),
    ],
)
def test_a_bad_line_is_named(line: bytes, why: str) -> None:
    data = b'{"a": 1}\n\n' + line + b"\n2\n"
    with pytest.raises(BadLine, match=rf"line 3: .*{why}"):
        scanned(data)


def test_a_byte_order_mark_is_no_part_of_the_first_line() -> None:
    data = b"\xef\xbb\xbf1\n2"
    assert items_from([data], scanned(data).starts[0], 0, 1, most_line_bytes=MOST) == {0: 1, 1: 2}


def test_a_file_without_lines_has_no_items() -> None:
    assert scanned(b"").items == scanned(b"\n \n\r\n").items == 0


def test_a_gigabyte_in_one_line_is_read_no_further_than_allowed() -> None:
    read = 0

    def endless() -> Iterator[bytes]:
        nonlocal read
        while True:
            read += 1 << 20
            yield b"x" * (1 << 20)

    with pytest.raises(BadLine, match="line 1: it has more than 65536 bytes"):
        Scan().read_on(endless(), most_items=MOST, most_line_bytes=65_536)
    assert read == 1 << 20


def test_a_million_lines_end_at_the_limit() -> None:
    read = 0

    def lines() -> Iterator[bytes]:
        nonlocal read
        for _ in range(1_000):
            read += 1
            yield b"1\n" * 1_000

    scan = Scan()
    for _ in range(4):
        scan.read_on(lines(), most_items=20_000, most_line_bytes=MOST)
    with pytest.raises(TooManyLines):
        scan.read_on(lines(), most_items=20_000, most_line_bytes=MOST)
    assert len(scan.starts) == 20_000 // GROUP
    assert read < 100


def test_a_step_reads_a_bounded_part() -> None:
    scan = Scan(step_bytes=100)
    scan.read_on([b'"0123456789"\n' * 50], most_items=MOST, most_line_bytes=MOST)
    assert (scan.is_over, scan.offset, scan.items) == (False, 104, 8)
