"""Long texts of a document that arrives in pieces go to a file; the rest stays a JSON document."""

from __future__ import annotations

import errno
import json
import os
import random
import resource
import tempfile
import tracemalloc
from typing import Any

import pytest

from foundation import long_texts
from foundation.json_text import NotReadable
from foundation.long_texts import LONG_BYTES, LongTexts, LongTextsTooLong, NoRoom, RestTooLong, TextTooLong

LONG = "A" * (LONG_BYTES + 1)
MOST = 1 << 30


def read(
    body: bytes, *, pieces: int = 64 * 1024, rest: int = MOST, most: int = MOST
) -> tuple[LongTexts, Any]:
    texts = LongTexts(max_rest=rest, max_long=most)
    for first in range(0, len(body), pieces):
        texts.feed(body[first : first + pieces])
    return texts, json.loads(texts.finish())


def test_only_texts_beyond_the_limit_are_moved() -> None:
    short = "b" * LONG_BYTES
    texts, value = read(json.dumps({"long": LONG, "short": short, "n": [1, LONG]}).encode())
    assert value["short"] == short
    found = texts.find(value["long"])
    assert found is not None
    assert found.text() == LONG
    assert b"".join(found.chunks()) == LONG.encode()
    assert texts.find(short) is None
    assert texts.rest_bytes < LONG_BYTES + 200


@pytest.mark.parametrize("pieces", [1, 7, 4096, 64 * 1024, 1 << 20])
def test_any_cut_into_pieces_gives_the_same_document(pieces: int) -> None:
    """Quotes, backslashes and escapes at each border."""
    chance = random.Random(7)
    parts = ['"', "\\", "\\\\", '\\"', "a", "é", "\n", "\U0001f600", "{", "[", "x" * 300]
    texts_of = ["".join(chance.choices(parts, k=chance.choice([0, 3, 300, 1000]))) for _ in range(8)]
    value = {"a": texts_of, "b": {f"k{at}": one for at, one in enumerate(texts_of)}, "c": "\\" * 40_000}
    for ascii_only in (True, False):
        body = json.dumps(value, ensure_ascii=ascii_only).encode()
        texts, document = read(body, pieces=pieces)
        assert texts, "no text was moved"
        assert texts.restored(document, most=MOST) == value
        assert texts.rest_bytes <= len(body) + 100 * len(texts._ends)


def test_long_texts_take_no_memory() -> None:
    texts = LongTexts(max_rest=1000, max_long=MOST)
    piece = b"QUJD" * 16_384
    tracemalloc.start()
    try:
        texts.feed(b'{"image": "')
        for _ in range(800):  # 50 MiB
            texts.feed(piece)
        texts.feed(b'"}')
        (mark,) = json.loads(texts.finish()).values()
        found = texts.find(mark)
        assert found is not None
        assert sum(map(len, found.chunks())) == 800 * len(piece)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 4_000_000


def test_the_rest_and_the_long_texts_have_limits_of_their_own() -> None:
    body = json.dumps([LONG, "x" * 900]).encode()
    texts, _ = read(body, rest=1000, most=len(LONG))
    assert texts
    with pytest.raises(LongTextsTooLong):
        read(body, most=len(LONG) - 1)
    with pytest.raises(RestTooLong):
        read(body, rest=900)
    with pytest.raises(RestTooLong):
        read(b'["' + b"x" * 2000, rest=1000)


def test_texts_are_put_back_within_the_limit() -> None:
    texts, value = read(json.dumps({"logs": LONG, "result": {"image": LONG, "text": [LONG]}}).encode())
    rest = texts.rest_bytes
    assert texts.restored(value["logs"], most=rest + len(LONG)) == LONG
    with pytest.raises(TextTooLong) as refused:
        texts.restored(value["result"], most=rest + 2 * len(LONG))
    assert (refused.value.path, refused.value.length) == (("text", 0), len(LONG))


@pytest.mark.parametrize("raw", [b"\\x", b"\\u00", b"\xff", b"\n"], ids=repr)
def test_a_text_that_json_does_not_allow_is_not_read(raw: bytes) -> None:
    texts, value = read(b'["' + LONG.encode() + raw + b'"]')
    found = texts.find(value[0])
    assert found is not None
    with pytest.raises(NotReadable):
        found.text()


@pytest.mark.parametrize("raw", [b"\\x", b"\\u00", b"\\ud800", b"\\u00e9", b"\xc3\xa9", b"\\uZZZZ"], ids=repr)
@pytest.mark.parametrize("behind", [b"", b"A" * 600_000], ids=["at the end", "in the middle"])
def test_pieces_are_of_ascii(raw: bytes, behind: bytes) -> None:
    texts, value = read(b'["' + LONG.encode() + raw + behind + b'"]')
    found = texts.find(value[0])
    assert found is not None
    with pytest.raises(NotReadable):
        list(found.chunks())


def test_escapes_in_pieces_are_resolved_across_borders() -> None:
    line = "QUJD/+" * 12 + "\n"
    text = line * 12_000
    raw = text.replace("/", "\\/").replace("+", "\\u002b").replace("\n", "\\r\\n")
    texts, value = read(f'["{raw}"]'.encode())
    found = texts.find(value[0])
    assert found is not None
    assert b"".join(found.chunks()) == text.replace("\n", "\r\n").encode()


def test_a_long_name_of_a_member_is_refused() -> None:
    texts, value = read(json.dumps({LONG: 1}).encode())
    with pytest.raises(NotReadable, match="name of a member"):
        texts.restored(value, most=MOST)


@pytest.mark.parametrize(
    "body", [b'{"a": "' + LONG.encode(), b'{"a": "b', b'{"a": "' + LONG.encode() + b"\\"]
)
def test_a_document_that_ends_early_is_no_json(body: bytes) -> None:
    texts = LongTexts(max_rest=MOST, max_long=MOST)
    texts.feed(body)
    with pytest.raises(ValueError):
        json.loads(texts.finish())


def test_the_file_has_no_name_and_is_its_owners(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    texts, value = read(json.dumps([LONG]).encode())
    assert list(tmp_path.iterdir()) == []
    assert texts._file is not None
    found = os.fstat(texts._file.fileno())
    assert (found.st_nlink, found.st_mode & 0o777) == (0, 0o600)
    texts.close()
    with pytest.raises(ValueError):
        texts.find(value[0]).text()  # type: ignore[union-attr]


def test_a_full_folder_is_not_taken_for_a_broken_answer(monkeypatch) -> None:
    def full(**_: Any) -> Any:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(long_texts.tempfile, "TemporaryFile", full)
    with pytest.raises(NoRoom, match="No space left"):
        read(json.dumps([LONG]).encode())


def test_many_short_texts_are_read_fast() -> None:
    """Sixteen megabytes of empty texts must not hold a worker for seconds."""
    body = b"[" + b'"",' * 5_000_000 + b"1]"
    texts = LongTexts(max_rest=MOST, max_long=MOST)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_utime
    for first in range(0, len(body), 64 * 1024):
        texts.feed(body[first : first + 64 * 1024])
    assert resource.getrusage(resource.RUSAGE_SELF).ru_utime - before < 2
    assert texts.finish() == body
