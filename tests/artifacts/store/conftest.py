"""Both stores, each behind its real HTTP server."""

from __future__ import annotations

import threading
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
from artifacts.store.configured import STORE_PATH
from artifacts.store.contract import SignedRequest, Store
from artifacts.store.local import LocalStore
from artifacts.store.s3 import S3Place, S3Store
from dispatcher_project.web.artifact_bytes import ArtifactBytes
from dispatcher_project.web.protocol import WebLimits
from dispatcher_project.web.server import make_server
from tests.support.servers.seaweed import KEY, SECRET, find_weed, running_seaweed

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


@contextmanager
def serving(application: Any) -> Iterator[str]:
    """The application behind the real web server of this process; its URL."""
    server = make_server(
        application, WebLimits(), host="127.0.0.1", port=0, log_config=None, timeout_graceful_shutdown=1
    )
    thread = threading.Thread(target=server.run, name="web", daemon=True)
    thread.start()
    until = time.monotonic() + 60
    while not server.started:
        assert thread.is_alive()
        assert time.monotonic() < until
        time.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(60)


@pytest.fixture(scope="session")
def http() -> Iterator[httpx.Client]:
    with httpx.Client(timeout=30, trust_env=False) as client:
        yield client


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
def local_stage(tmp_path: Path, http: httpx.Client) -> Iterator[Stage]:
    offset = [0.0]
    stores: list[LocalStore] = []
    with serving(_http_only(ArtifactBytes(lambda: stores[0]))) as url:
        now = lambda: datetime.now(UTC) + timedelta(seconds=offset[0])  # noqa: E731
        stores.append(LocalStore(tmp_path / "store", f"{url}{STORE_PATH}", now))
        yield Stage(stores[0], http, offset)


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


@pytest.fixture(params=["local", "s3"])
def stage(request: pytest.FixtureRequest) -> Stage:
    found: Stage = request.getfixturevalue(f"{request.param}_stage")
    return found


def _http_only(application: Any) -> Any:
    """Only the web process's own application knows ASGI's lifespan."""

    async def begin(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "lifespan":
            await application(scope, receive, send)
            return
        for answer in ("startup", "shutdown"):
            await receive()
            await send({"type": f"lifespan.{answer}.complete"})

    return begin
