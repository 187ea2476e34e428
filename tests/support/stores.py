"""Stores of artifacts: a folder, and an S3 server of this machine."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from artifacts.keys import ObjectKey
from artifacts.store.contract import SignedRequest, Store
from artifacts.store.place import S3Place
from artifacts.store.s3 import S3Store
from verification.proving.seaweed import KEY, SECRET, OwnSeaweed, find_weed

BUCKET = "tests"


@dataclass
class Stage:
    """A store and what reads and writes it from outside. offset: of the dispatcher's clock, in seconds."""

    store: Store
    http: httpx.Client
    offset: list[float] = field(default_factory=lambda: [0.0])

    def send(self, signed: SignedRequest, content: Any = None, **headers: str) -> httpx.Response:
        """Send a signed request; further headers replace its own."""
        given = httpx.Headers(dict(signed.headers))
        given.update({name.replace("_", "-"): value for name, value in headers.items()})
        return self.http.request(signed.method, signed.url, headers=given, content=content)

    def put(self, key: ObjectKey, data: bytes) -> httpx.Response:
        return self.send(self.store.sign_put(key, len(data), 60.0), data)


@pytest.fixture(scope="session")
def http() -> Iterator[httpx.Client]:
    with httpx.Client(timeout=30, trust_env=False) as client:
        yield client


@contextmanager
def running_seaweed(folder: Path) -> Iterator[str]:
    """The URL of a server with one account (`KEY`, `SECRET`)."""
    server = OwnSeaweed(folder)
    try:
        server.start()
        yield server.url
    finally:
        server.close()


@pytest.fixture(scope="session")
def seaweed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    pytest.importorskip("boto3")
    if find_weed() is None:
        pytest.skip("no SeaweedFS on this machine")
    with running_seaweed(Path(tmp_path_factory.mktemp("seaweed"))) as url:
        yield url


@pytest.fixture(scope="session")
def s3_clients() -> dict[str, Any]:
    """By endpoint, for all tests."""
    return {}


@pytest.fixture
def s3_stage(
    http: httpx.Client, seaweed: str, s3_clients: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> Stage:
    import botocore.auth

    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    offset = [0.0]
    real = botocore.auth.get_current_datetime
    monkeypatch.setattr(
        botocore.auth, "get_current_datetime", lambda *a, **k: real(*a, **k) + timedelta(seconds=offset[0])
    )
    now = lambda: datetime.now(UTC) + timedelta(seconds=offset[0])  # noqa: E731
    place = S3Place(BUCKET, f"some/prefix-{time.time_ns()}/", seaweed, region="us-east-1")
    store = S3Store(place, now, skew_seconds=0.0)
    store._clients = s3_clients  # making one takes half a second
    if store.check():  # the first test
        store._client().create_bucket(Bucket=BUCKET)
    return Stage(store, http, offset)
