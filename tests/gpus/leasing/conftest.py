from __future__ import annotations

from collections.abc import Iterator

import pytest

from gpus.leasing.scripts import Client
from tests.gpus.leasing.lease_harness import LeaseHarness
from tests.support.lease_client import client

__all__ = ["client"]


@pytest.fixture(autouse=True)
def nothing_is_left_behind(request: pytest.FixtureRequest) -> Iterator[None]:
    """Flush Redis: a scan of one fleet's keys also visits the keys of other fleets."""
    yield
    if "client" in request.fixturenames:
        request.getfixturevalue("client").flushdb()


@pytest.fixture
def harness(client: Client, fleet: str) -> LeaseHarness:
    """A whole index with one empty pool."""
    return LeaseHarness(client, fleet).open()
