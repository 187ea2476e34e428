"""Both stores, each behind its real HTTP server."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest

from artifacts.store.configured import STORE_PATH
from artifacts.store.local import LocalStore
from tests.support.servers.artifact_store import serving_store
from tests.support.stores import Stage, http, s3_clients, s3_stage, seaweed

__all__ = ["http", "s3_clients", "s3_stage", "seaweed"]


@pytest.fixture
def local_stage(tmp_path: Path, http: httpx.Client) -> Iterator[Stage]:
    offset = [0.0]
    stores: list[LocalStore] = []
    with serving_store(lambda: stores[0]) as url:
        now = lambda: datetime.now(UTC) + timedelta(seconds=offset[0])  # noqa: E731
        stores.append(LocalStore(tmp_path / "store", f"{url}{STORE_PATH}", now))
        yield Stage(stores[0], http, offset)


@pytest.fixture(params=["local", "s3"])
def stage(request: pytest.FixtureRequest) -> Stage:
    found: Stage = request.getfixturevalue(f"{request.param}_stage")
    return found
