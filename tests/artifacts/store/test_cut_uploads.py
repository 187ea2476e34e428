"""Uploads that are cut at each tenth, whole and in parts, to both stores over a real connection."""

from __future__ import annotations

import os
import socket
from datetime import UTC, datetime, timedelta
from urllib.parse import urlsplit

import pytest

from artifacts.store.contract import SignedRequest, UploadInParts
from artifacts.store.local import LocalStore
from artifacts.store.s3 import S3Store
from tests.support.store_objects import key_of
from tests.support.stores import Stage
from tests.support.waiting import wait_for

PART = 5 * 1024 * 1024
DATA = os.urandom(PART + 1_000_000)
KEY = key_of(DATA)


def send_some(signed: SignedRequest, size: int, data: bytes) -> None:
    """Send a PUT of `size` bytes, of which only these come, and end the connection."""
    url = urlsplit(signed.url)
    headers = {**signed.headers, "Host": url.netloc, "Content-Length": str(size)}
    lines = [f"PUT {url.path}?{url.query} HTTP/1.1", *(f"{name}: {text}" for name, text in headers.items())]
    with socket.create_connection((str(url.hostname), int(url.port or 0)), timeout=30) as connection:
        connection.sendall("\r\n".join([*lines, "", ""]).encode() + data)


@pytest.mark.parametrize("tenth", range(10))
def test_a_put_cut_at_each_tenth_is_no_object(stage: Stage, tenth: int) -> None:
    send_some(stage.store.sign_put(KEY, len(DATA), 60.0), len(DATA), DATA[: len(DATA) * tenth // 10])
    assert stage.store.find(KEY) is None
    assert stage.put(KEY, DATA).status_code == 200
    assert b"".join(stage.store.chunks(KEY)) == DATA


@pytest.mark.parametrize("tenth", range(10))
def test_a_part_cut_at_each_tenth_is_not_stored(stage: Stage, tenth: int) -> None:
    assert isinstance(stage.store, LocalStore | S3Store)
    stage.store.part_bytes = PART
    upload = stage.store.begin_parts(KEY, len(DATA))
    first = stage.store.sign_part(KEY, upload.upload, 1, PART, 60.0)
    send_some(first, PART, DATA[: PART * tenth // 10])
    assert _stored(stage, upload) == frozenset()
    for number, data in ((1, DATA[:PART]), (2, DATA[PART:])):
        signed = stage.store.sign_part(KEY, upload.upload, number, len(data), 60.0)
        wait_for(
            lambda signed=signed, data=data: stage.send(signed, data).status_code == 200
        )  # else it is busy
    assert stage.store.find(KEY) is None
    stage.store.complete_parts(KEY, upload.upload, len(DATA))
    assert b"".join(stage.store.chunks(KEY)) == DATA
    assert stage.store.drop_unfinished(datetime.now(UTC) + timedelta(hours=1)) == 0


def _stored(stage: Stage, upload: UploadInParts) -> frozenset[int]:
    return stage.store.find_parts(KEY, upload.upload, len(DATA)).stored
