"""What S3 answers, and what it means. `test_contract.py` runs the store against a real server."""

from __future__ import annotations

import errno
import hashlib
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

pytest.importorskip("boto3", reason="the extra [s3] is not installed")
from botocore.stub import Stubber

from artifacts.keys import ObjectKey
from artifacts.store import contract, s3
from artifacts.store.contract import StoreUnavailable
from artifacts.store.place import S3Place
from artifacts.store.s3 import S3Store

DATA = b"picture"
KEY = ObjectKey(7, hashlib.sha256(DATA).hexdigest())


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> S3Store:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    return S3Store(S3Place("films", endpoint="http://127.0.0.1:1", region="eu-1"), lambda: datetime.now(UTC))


@pytest.fixture
def answers(store: S3Store) -> Iterator[Stubber]:
    """The answers of the bucket, in the order in which they are given."""
    with Stubber(store._client()) as stubber:
        yield stubber


def test_a_conflict_of_two_writers_is_no_stored_object(store: S3Store, answers: Stubber) -> None:
    """Nothing was written, and S3 asks to send it again; 412 says that the object is there."""
    for code, status in (("PreconditionFailed", 412), ("ConditionalRequestConflict", 409)):
        answers.add_client_error("head_object", "404", http_status_code=404)
        answers.add_client_error("put_object", code, http_status_code=status)
    store.write(KEY, len(DATA), [DATA])
    with pytest.raises(StoreUnavailable, match="409"):
        store.write(KEY, len(DATA), [DATA])


@pytest.mark.parametrize("size", [len(DATA), s3.PART_BYTES + 1])
def test_a_source_that_changed_before_its_copy_is_no_stored_object(
    store: S3Store, answers: Stubber, size: int
) -> None:
    if size > s3.PART_BYTES:
        answers.add_response("create_multipart_upload", {"UploadId": "u"})
        answers.add_client_error("upload_part_copy", "PreconditionFailed", http_status_code=412)
        answers.add_response("abort_multipart_upload", {})
    else:
        answers.add_client_error("copy_object", "PreconditionFailed", http_status_code=412)
    with pytest.raises(StoreUnavailable, match="replaced"):
        store._copy({"Bucket": "films", "Key": "p/7/x"}, KEY, size, "tag")


def test_a_full_disk_for_temporary_files_is_named(
    store: S3Store, answers: Stubber, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Full:
        def __init__(self, *_: Any) -> None: ...
        def __enter__(self) -> Full:
            return self

        def __exit__(self, *_: object) -> None: ...
        def write(self, chunk: bytes) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(s3, "SpooledTemporaryFile", Full)
    answers.add_client_error("head_object", "404", http_status_code=404)
    with pytest.raises(StoreUnavailable, match=r"No space left on device \(TMPDIR\)"):
        store.write(KEY, len(DATA), [DATA])


@pytest.mark.parametrize("size", [1, 625 * 1024**3, 625 * 1024**3 + 1, s3.MAX_OBJECT_BYTES])
def test_an_object_has_as_many_parts_as_s3_takes(store: S3Store, answers: Stubber, size: int) -> None:
    answers.add_response("create_multipart_upload", {"UploadId": "u"})
    found = store.begin_parts(KEY, size)
    assert found.parts <= contract.MAX_PARTS
    assert 5 * 1024**2 <= found.part_bytes <= s3.MAX_PUT_BYTES
    assert (found.parts - 1) * found.part_bytes < size <= found.parts * found.part_bytes
    assert (found.part_bytes > s3.PART_BYTES) == (size > 625 * 1024**3)


@pytest.mark.parametrize(("size", "expected"), [(10, [8, 2]), (80, [8] * 10), (90, [9] * 10), (81, [9] * 9)])
def test_objects_written_by_the_dispatcher_keep_the_limit_of_parts(
    monkeypatch: pytest.MonkeyPatch, size: int, expected: list[int]
) -> None:
    for name, value in (("MAX_PARTS", 10), ("CHUNK_BYTES", 1)):
        monkeypatch.setattr(contract, name, value)
    chunks = [b"x" * 7] * (size // 7) + [b"x" * (size % 7)]
    assert [len(part) for part in s3._parts(chunks, size, hashlib.sha256(), 8)] == expected
