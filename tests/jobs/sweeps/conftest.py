"""Fixtures: a fleet in the database with a real or fake lease layer, and a clock moved by the test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.queue_world import (
    world,
)
from tests.support.servers.health_server import HealthServer

__all__ = ["world"]


@pytest.fixture
def gpu() -> Iterator[HealthServer]:
    with HealthServer() as server:
        yield server
