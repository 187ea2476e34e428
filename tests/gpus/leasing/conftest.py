from __future__ import annotations

from collections.abc import Iterator

import pytest

from dispatcher_project.embedded import EmbeddedValkey
from gpus.leasing.connect import connect
from gpus.leasing.scripts import Client

from .rig import Rig


@pytest.fixture(scope="session")
def client(valkey: EmbeddedValkey) -> Iterator[Client]:
    found = connect(valkey.url)
    yield found
    found.close()


@pytest.fixture
def rig(client: Client, fleet: str) -> Rig:
    """A whole index with one pool and nothing in it."""
    return Rig(client, fleet).open()
