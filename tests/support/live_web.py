"""The web server in this process, on a free port."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from dispatcher_project.supervisor.embedded import EmbeddedValkey
from tests.support.announcements import announce_patiently
from tests.support.api_harness import Account, account, make_model
from tests.support.servers.web import Web, running_web


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
