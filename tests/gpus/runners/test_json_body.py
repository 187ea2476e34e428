from __future__ import annotations

import json

import pytest

from gpus.runners.transport import Unreadable, read_json


@pytest.mark.parametrize("value", [None, 1, "a", [1, {"b": 2.5}], "\u20ac\U0001f600", "\\u0000"])
def test_json_is_read(value):
    assert read_json(json.dumps(value).encode()) == value


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html>",
        b'{"a": 1',
        b"\xff\xfe\xfd",
        b"NaN",
        b'{"a": -Infinity}',
        b"[1e999]",
        rb'"\u0000"',
        rb'{"a\u0000": 1}',
        rb'[{"x": ["\ud800"]}]',
        b'"\x00"',
        b"[" * 100_000,
        b"1" * 5000,
    ],
)
def test_values_that_cannot_be_stored_are_refused(body):
    with pytest.raises(Unreadable):
        read_json(body)
