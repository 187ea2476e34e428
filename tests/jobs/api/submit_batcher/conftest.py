"""Fixtures: the site with the submit batcher, and models."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

import pytest
from django.db import connections

from tests.jobs.api.submit_batcher.site import Site
from tests.support.api_harness import ApiHarness, make_model
from tests.support.fakes import ManualClock

NOW = datetime(2026, 3, 4, 12, tzinfo=UTC)


@pytest.fixture(autouse=True)
def ground(api: ApiHarness) -> Iterator[None]:
    """Close the database connections of all threads."""
    kept, connections.settings["default"]["CONN_MAX_AGE"] = connections.settings["default"]["CONN_MAX_AGE"], 0
    api.clock = ManualClock(NOW)
    make_model("zimg")
    make_model("full", max_queued=0)
    make_model("strict", payload_schema={"type": "object", "required": ["prompt"]})
    make_model("tree", payload_schema={"properties": {"prompt": {"$ref": "#"}}})
    yield
    connections.settings["default"]["CONN_MAX_AGE"] = kept


@pytest.fixture
def batcher() -> Iterator[Site]:
    site = Site()
    yield site
    site.close()


@pytest.fixture
def both(batcher: Site) -> Iterator[tuple[Site, Site]]:
    """The site without and with the batcher."""
    plain = Site(is_batching=False)
    yield plain, batcher
    plain.close()
