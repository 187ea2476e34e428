"""Base64 and `data:` URIs as files, from pieces of any size."""

from __future__ import annotations

import base64
import io
import os
from collections.abc import Iterator

import pytest

from foundation.base64_file import as_file, decoded, unquoted, without_first
from foundation.data_uri import BadDataUri

DATA = os.urandom(100_001)
TEXT = base64.b64encode(DATA)


def cut(text: bytes, size: int) -> Iterator[bytes]:
    return (text[first : first + size] for first in range(0, len(text), size))


@pytest.mark.parametrize("size", [1, 3, 4, 5, 4096, 1_000_000])
def test_pieces_of_any_size_give_the_same_bytes(size: int) -> None:
    for text in (TEXT, base64.urlsafe_b64encode(DATA), base64.encodebytes(DATA), TEXT + b"\r\n"):
        assert b"".join(decoded(cut(text, size))) == DATA


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (TEXT[:-1], "without its padding, after 133335 characters"),
        (TEXT[:-4] + b"A", "without its padding"),
        (b"QUJD*UJD", "not base64"),
        (b"QQ==QUJD", "not base64"),
        (b"QUJ", "padding, after 3"),
        (b"<html>", "not base64"),
        (b"Q=Q=", "not base64"),
    ],
)
@pytest.mark.parametrize("size", [4, 100_000])
def test_wrong_text_is_refused(text: bytes, why: str, size: int) -> None:
    with pytest.raises(BadDataUri, match=why if size > 4 else "base64"):
        list(decoded(cut(text, size)))


def test_nothing_follows_the_padding() -> None:
    with pytest.raises(BadDataUri, match="goes on after its padding, behind 4 characters"):
        list(decoded(iter([b"QQ==", b"QUJD"])))
    with pytest.raises(BadDataUri, match="goes on after its padding"):
        list(decoded(iter([b"QQ==", b"QU"])))
    with pytest.raises(BadDataUri, match="goes on after its padding"):
        list(decoded(iter([b"QUJDQQ==Q"])))


@pytest.mark.parametrize("size", [1, 2, 3, 100])
def test_percent_encoded_pieces(size: int) -> None:
    assert b"".join(unquoted(cut(b"a%20b%C3%A9", size))) == "a bé".encode()
    for text in (b"a%2", b"a%zzb", b"%"):
        with pytest.raises(BadDataUri):
            list(unquoted(cut(text, size)))


def test_a_file_of_pieces_can_be_read_twice() -> None:
    file = as_file(lambda: decoded(without_first(cut(b"data:," + TEXT, 1000), 6)))
    first = file.read(10)
    assert file.seek(0) == 0
    assert first == DATA[:10]
    assert b"".join(iter(lambda: file.read(4096), b"")) == DATA
    file.seek(0)
    assert file.read() == DATA
    with pytest.raises(io.UnsupportedOperation):
        file.seek(10**9)
