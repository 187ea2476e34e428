"""Fixtures: a web process over a real Valkey, and jobs changed by the real transitions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from dispatcher_project.supervisor.embedded import EmbeddedValkey
from tests.jobs.api.conftest import Account, account, make_model, world
from tests.support.announcements import announce_patiently
from tests.support.servers.web import Web, running_web

__all__ = ["world"]


@pytest.fixture
def redis_url(valkey: EmbeddedValkey, settings: Any, monkeypatch: pytest.MonkeyPatch) -> str:
    settings.REDIS_URL = valkey.url
    announce_patiently(monkeypatch)
    return valkey.url


@pytest.fixture
def web(transactional_db: None, redis_url: str) -> Iterator[Web]:
    with running_web() as web:
        yield web


@pytest.fixture
def tenant(transactional_db: None) -> Account:
    make_model("zimg")
    return account("acme")
