"""The client, a store and files for it."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dispatcher_client import Client, uploads
from tests.support.api_harness import Account
from tests.support.new_client import NewClient
from tests.support.servers.web import Web

PART = 300_000


@pytest.fixture(autouse=True)
def store(web: Web, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: Any) -> Path:
    """The folder of the store. Parts are small, so that a file of a megabyte has some."""
    changed = replace(
        settings.DISPATCHER,
        artifact_reserve_bytes=0,
        artifact_part_bytes=PART,
        artifact_url=web.url,
        upload_idle_seconds=2.0,
    )
    settings.DISPATCHER = changed
    settings.ARTIFACT_FOLDER = tmp_path / "store"
    monkeypatch.setattr(uploads, "PARTS_ABOVE_BYTES", PART)
    return tmp_path / "store"


@pytest.fixture
def client(web: Web, tenant: Account, new_client: NewClient) -> Client:
    return new_client(web.url, tenant.key, retry_seconds=5)


def make_file(folder: Path, size: int, name: str = "film.bin") -> Path:
    path = folder / name
    path.write_bytes(os.urandom(size))
    return path
