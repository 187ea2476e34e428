"""A connection to the Valkey of a test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dispatcher_project.supervisor.embedded import EmbeddedValkey
from gpus.leasing.connect import connect
from gpus.leasing.scripts import Client


@pytest.fixture(scope="session")
def client(valkey: EmbeddedValkey) -> Iterator[Client]:
    found = connect(valkey.url)
    yield found
    found.close()
