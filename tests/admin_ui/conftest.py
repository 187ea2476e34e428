"""Fixtures of the admin's tests: rows, users with different permissions, fake leases, a real browser."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace

import pytest
from django.contrib.auth.models import Group, User
from django.test import Client, override_settings

import admin_ui.middleware  # noqa: F401  its receiver of sign-ins sets the session that requests expect
from dispatcher_project.supervisor.embedded import EmbeddedValkey
from gpus.leasing.store import RedisFleets
from jobs import ports
from jobs.events.announce import Announcer
from tests.admin_ui.browser import Chromium, WebBrowser, running_chromium
from tests.admin_ui.rows import fill
from tests.support.admin_ports import FakePorts
from tests.support.announcements import announce_patiently
from tests.support.servers.web import running_web


@pytest.fixture
def fake_ports(monkeypatch: pytest.MonkeyPatch) -> FakePorts:
    fake_ports = FakePorts()
    monkeypatch.setattr(ports, "production_ports", fake_ports.ports)
    return fake_ports


@pytest.fixture(scope="session")
def chromium() -> Iterator[Chromium]:
    with running_chromium() as chromium:
        yield chromium


@pytest.fixture(scope="module")
def web_browser(django_db_setup: None, valkey: EmbeddedValkey, chromium: Chromium) -> Iterator[WebBrowser]:
    """One web process for all tests of a module, and the session's chromium, on a real Redis, so that any
    fleet's leases and announcements work. Such tests also need `transactional_db`."""
    real = replace(
        FakePorts().ports(),
        leases=RedisFleets(valkey.url),
        announce=Announcer(valkey.url),
    )
    with override_settings(REDIS_URL=valkey.url), pytest.MonkeyPatch.context() as patch:
        # playwright runs an event loop in this thread, which Django takes for asynchronous code
        patch.setitem(os.environ, "DJANGO_ALLOW_ASYNC_UNSAFE", "1")
        patch.setattr(ports, "production_ports", lambda: real)
        announce_patiently(patch)
        with running_web() as web, chromium.in_use() as browser:
            yield WebBrowser(browser, web.url)


@pytest.fixture
def boss(db: None) -> Client:
    return _client(User.objects.create_superuser("boss", password="correct horse"))


@pytest.fixture
def operator(db: None) -> Client:
    return _member("operators")


@pytest.fixture
def viewer(db: None) -> Client:
    return _member("viewers")


@pytest.fixture
def filled(db: None) -> None:
    fill(jobs=300)


def _member(group: str) -> Client:
    """Of a group that `migrate` has written."""
    user = User.objects.create_user(group, password="correct horse", is_staff=True)
    user.groups.add(Group.objects.get(name=group))
    return _client(user)


def _client(user: User) -> Client:
    client = Client()
    client.force_login(user)
    return client
