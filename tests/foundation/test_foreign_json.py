"""JSON from outside: which texts are read, which are refused, at a cost linear in the length."""

from __future__ import annotations

import json
import re
import time
import tracemalloc
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foundation import json_text
from foundation.json_text import Bounds, NotReadable, TooDeep, TooMuch, check_bounds, read

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda values: st.lists(values, max_size=4) | st.dictionaries(st.text(max_size=5), values, max_size=4),
    max_leaves=20,
)
BRACKETS = '[]{},:"\\ \n1a'


@settings(max_examples=100, deadline=None)
@given(JSON)
def test_json_written_by_python_is_read_back(value: Any) -> None:
    assert read(json.dumps(value).encode()) == value
    assert read(json.dumps(value, ensure_ascii=False, indent=1).encode("utf-8", "surrogatepass")) == value


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=200) | st.text(BRACKETS, max_size=60).map(str.encode))
def test_any_bytes_are_a_value_or_not_readable(body: bytes) -> None:
    bounds = Bounds(containers=8, values=12, depth=4)
    try:
        value = read(body, bounds=bounds)
    except NotReadable:
        return
    assert value == json.loads(body)
    assert _depth(value) <= bounds.depth
    assert _containers(value) <= bounds.containers


def _depth(value: Any) -> int:
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if inside is None else 1 + max(map(_depth, inside), default=0)


def _containers(value: Any) -> int:
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if inside is None else 1 + sum(map(_containers, inside))


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"nope",
        b"NaN",
        b"-Infinity",
        b"1e999",
        b"[1.5, 1E+999]",
        b"9" * 300 + b"e99",
        b"1.0e00000999",
        b"-" + b"1" * 400 + b".5",
        b"1" * 400,
        b'"\xff"',
        b"\xff\xfe[\x00]\x00",
        b"[1",
        b'{"a"}',
        b"1" * 5000,
    ],
)
def test_text_that_is_not_json_for_every_reader_is_refused(body: bytes) -> None:
    with pytest.raises(NotReadable):
        read(body)


def test_texts_may_hold_as_many_brackets_as_they_like() -> None:
    text = '[{,\\"' * 400_000
    assert read(json.dumps([text]).encode()) == [text]


def test_each_bound_is_named_with_its_value() -> None:
    bounds = Bounds(containers=10, values=100, depth=3)
    with pytest.raises(TooDeep, match="more than 3 levels"):
        read(b"[[[[]]]]", bounds=bounds)
    with pytest.raises(TooMuch, match="more than 10 lists and objects"):
        read(b"[" + b",".join([b"{}"] * 10) + b"]", bounds=bounds)
    with pytest.raises(TooMuch, match="more than 100 values"):
        read(b"[" + b",".join([b"1"] * 101) + b"]", bounds=bounds)
    assert read(b"[[[]]]", bounds=bounds) == [[[]]]


HOSTILE = {
    "empty lists": b"[" + b"[]," * 5_000_000 + b"[]]",
    "empty objects": b"[" + b"{}," * 5_000_000 + b"{}]",
    "numbers": b"[" + b"1," * 8_000_000 + b"1]",
    "depth": b"[" * 8_000_000,
    "a text that never ends": b'"' + b'\\"' * 4_000_000,
    "many texts that never end": b'["' + b'",[' * 4_000_000,
    "backslashes": b'["' + b"\\" * 8_000_001,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_the_cost_of_a_hostile_text_is_linear_in_its_length(name: str) -> None:
    body = HOSTILE[name]
    tracemalloc.start()
    began = time.process_time()
    try:
        with pytest.raises(NotReadable):
            read(body)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 8 * len(body), "a parsed list of empty lists has 56 bytes for three"
    assert time.process_time() - began < 20.0, "in seconds, where a quadratic search takes hours"


def test_the_bounds_are_checked_before_anything_is_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_text.json, "loads", lambda *_, **__: pytest.fail("it was parsed"))
    with pytest.raises(TooMuch):
        read(b"[" + b"[]," * 300_000 + b"[]]")
    check_bounds(b"[" + b"[]," * 100_000 + b"[]]")


NUMBER_PIECES = ["1" * 307, "0" * 309, "9", "e", "E", "e+", "-", ",", " " * 301]


@settings(max_examples=150, deadline=None)
@given(st.lists(st.sampled_from(NUMBER_PIECES), max_size=9))
def test_a_large_number_is_seen_wherever_windows_end(pieces: list[str]) -> None:
    body = "".join(pieces).encode()
    has_long = re.search(rb"[0-9]{309}", body) is not None
    may_be_infinite = has_long or re.search(rb"[0-9][eE][+]?[0-9]", body) is not None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_text, "_NUMBERS_WINDOW_BYTES", 310)
        assert json_text._large_numbers(body) == (has_long, may_be_infinite)
