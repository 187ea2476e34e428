"""An output that a worker writes in parts to a real S3 server, which is cut off at a chosen moment."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from artifacts.keys import ObjectKey
from artifacts.store.configured import make_store
from artifacts.store.contract import StoreUnavailable
from artifacts.store.place import S3Place
from artifacts.store.s3 import S3Store
from tests.support.stores import BUCKET, Stage
from tests.support.waiting import wait_for
from verification.proving.children import Children
from verification.proving.faults.store import MOMENTS, Moment
from verification.proving.leftovers import left_in_bucket
from verification.proving.proxies import Proxies
from verification.proving.system import clean_environment

MIB = 1024 * 1024
DATA = bytes(range(256)) * 4096 * 12
"""12 MiB: three parts of 5 MiB."""
KEY = ObjectKey(7, hashlib.sha256(DATA).hexdigest())


@pytest.fixture
def proxies(tmp_path: Path, seaweed: str) -> Iterator[Proxies]:
    children = Children(tmp_path, clean_environment())
    yield Proxies(children, {"store": urlsplit(seaweed).netloc})
    children.close()


@pytest.fixture
def store(s3_stage: Stage, proxies: Proxies, settings: Any) -> S3Store:
    """The store of the settings, with the smallest parts, behind the proxy."""
    direct = s3_stage.store
    assert isinstance(direct, S3Store)
    place: S3Place = direct._place
    behind = f"http://127.0.0.1:{proxies.port('store')}"
    text = f"s3://{place.bucket}/{place.prefix}?endpoint={behind}&region=us-east-1"
    settings.DISPATCHER = replace(settings.DISPATCHER, artifact_store=text, artifact_part_bytes=5 * MIB)
    store = make_store(lambda: datetime.now(UTC))
    assert isinstance(store, S3Store)
    return store


def left(s3_stage: Stage) -> list[str]:
    """What the test has left beside its object."""
    assert isinstance(s3_stage.store, S3Store)
    prefix = s3_stage.store._place.prefix
    found = left_in_bucket(s3_stage.store._client(), BUCKET)
    return [name for name in found if prefix in name and name != f"{prefix}{KEY}"]


@pytest.mark.parametrize("moment", MOMENTS, ids=[moment.name for moment in MOMENTS])
def test_no_part_of_an_output_is_seen_or_left(
    store: S3Store, s3_stage: Stage, proxies: Proxies, moment: Moment
) -> None:
    request = moment.request.replace("/a/", "/.*a/")  # the tests' prefix
    proxies.hold("store", request, moment.forwards)
    failed: list[Exception] = []

    def write() -> None:
        try:
            store.write(KEY, len(DATA), [DATA])
        except StoreUnavailable as error:
            failed.append(error)

    writer = threading.Thread(target=write)
    writer.start()
    wait_for(lambda: proxies.held("store") == 1)
    assert s3_stage.store.find(KEY) is None
    proxies.close("store")
    writer.join()
    assert failed
    assert s3_stage.store.find(KEY) is None
    assert len(left(s3_stage)) == 1, "the store was away when the upload was given up"
    proxies.heal("store")
    store.write(KEY, len(DATA), [DATA])
    found = s3_stage.store._client().head_object(**s3_stage.store._named(KEY))  # type: ignore[attr-defined]
    assert (found["ContentLength"], found["ETag"].strip('"')[-2:]) == (len(DATA), "-3")
    assert b"".join(s3_stage.store.chunks(KEY)) == DATA
    assert store.drop_unfinished(datetime.now(UTC) + timedelta(hours=1)) == 1
    assert left(s3_stage) == []
