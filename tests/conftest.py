"""Fixtures for every room: a real Valkey per test process, one fleet (hash tag) per test."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from dispatcher_project.embedded import EmbeddedValkey, find_valkey


@pytest.fixture(scope="session")
def valkey(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedValkey]:
    """A real server on a unix socket of its own; ends with the session."""
    if find_valkey() is None:
        pytest.skip("no Valkey or Redis server binary on this machine")
    folder = Path(tmp_path_factory.mktemp("v"))
    with EmbeddedValkey(folder, append_only=False) as server:
        yield server


@pytest.fixture(autouse=True)
def registry_not_remembered() -> None:
    """Reads of the registry are remembered for a second: longer than most tests."""
    from gpus import queries

    queries.forget()


@pytest.fixture
def fleet() -> str:
    """A hash tag of its own: tests share a server and never a key."""
    return f"t{uuid.uuid4().hex[:12]}"
