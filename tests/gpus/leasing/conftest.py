from __future__ import annotations

from collections.abc import Iterator

import pytest

from dispatcher_project.supervisor.embedded import EmbeddedValkey
from gpus.leasing.connect import connect
from gpus.leasing.scripts import Client

from .rig import Rig


@pytest.fixture(scope="session")
def client(valkey: EmbeddedValkey) -> Iterator[Client]:
    found = connect(valkey.url)
    yield found
    found.close()


@pytest.fixture(autouse=True)
def nothing_is_left_behind(request: pytest.FixtureRequest) -> Iterator[None]:
    """Flush Redis: a scan of one fleet's keys also visits the keys of other fleets."""
    yield
    if "client" in request.fixturenames:
        request.getfixturevalue("client").flushdb()


@pytest.fixture
def rig(client: Client, fleet: str) -> Rig:
    """A whole index with one empty pool."""
    return Rig(client, fleet).open()
