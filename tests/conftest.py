"""Fixtures for every room: a real Valkey per test process, one fleet (hash tag) per test."""

from __future__ import annotations

import gc
import itertools
import logging
import os
import sys
import uuid
from collections.abc import Generator, Iterator
from contextlib import ExitStack
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.test import TransactionTestCase, override_settings
from pytest_django.plugin import blocking_manager_key

from dispatcher_project.celery_transport.gc_tuning import collect_seldom
from dispatcher_project.supervisor.bootstrap import keep_bytecode
from dispatcher_project.supervisor.embedded import EmbeddedValkey, find_valkey
from tests.support.database_copies import original, own_copy
from tests.support.emptying import delete_rows, end_other_sessions, let_be_emptied
from tests.support.migrated_cache import begin_migrated, keep_migrated
from tests.support.system.programs import fork_server


class _Loggers(dict[str, logging.Logger | logging.PlaceHolder]):
    def values(self) -> list[logging.Logger | logging.PlaceHolder]:  # type: ignore[override]
        """A copy: pytest goes through all loggers at each test, while threads of servers make new ones."""
        return list(super().values())


logging.root.manager.loggerDict = _Loggers(logging.root.manager.loggerDict)
keep_bytecode()  # as manage.py does: else each process compiles all that it imports anew
_TOUCHES_THE_DATABASE = {"db", "transactional_db", "django_db_setup", "live_server"}


@pytest.hookimpl(trylast=True)  # after `-m` took its items out: shares are counted
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The pass on PostgreSQL repeats what touches the database and nothing else: the rest runs beside it."""
    if not os.environ.get("DISPATCHER_TEST_DATABASE_URL"):
        items[:] = _waiting_ones_first(items)
        return
    kept, left = list[pytest.Item](), list[pytest.Item]()
    for item in items:
        uses = _TOUCHES_THE_DATABASE & set(getattr(item, "fixturenames", ()))
        marked = item.get_closest_marker("django_db") or item.get_closest_marker("database")
        (kept if uses or marked else left).append(item)
    config.hook.pytest_deselected(items=left)
    items[:] = _waiting_ones_first(kept)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Imports and test items stay to the end: the garbage collector walks them neither while they are made,
    in each process anew, nor later."""
    gc.disable()
    keeps_bytecode = not sys.dont_write_bytecode
    try:
        return (yield)
    finally:
        gc.enable()
        collect_seldom()
        if keeps_bytecode and sys.dont_write_bytecode:
            raise pytest.UsageError("a test module turned bytecode off: all later ones are compiled anew")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> Generator[None, object, object]:
    """Workers that are forked copy one migrated database, and have one fork server."""
    if any(item.get_closest_marker("scenario") for item in session.items):
        with fork_server():
            return (yield from _with_original(session))
    return (yield from _with_original(session))


def _with_original(session: pytest.Session) -> Generator[None, object, object]:
    if not _forks(session.config):
        return (yield)
    blocker = session.config.stash[blocking_manager_key]
    with ExitStack() as stack:
        with blocker.unblock():
            stack.enter_context(original(session.items))
        try:
            return (yield)
        finally:
            with blocker.unblock():
                stack.close()


def _forks(config: pytest.Config) -> bool:
    return bool(config.getoption("forks", default=0))  # without the plugin there is no such option


def _waiting_ones_first(items: list[pytest.Item]) -> list[pytest.Item]:
    """Each process begins with its share of the long ones or of the scenarios: the latter mostly wait, and
    leave the cores to the former, which never do (as many processes play them as there are cores), and to the
    tests of the other pass. The others fill all shares up to the size at which xdist cuts them."""
    processes = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    players = min(processes, os.cpu_count() or 1)
    shares: list[list[pytest.Item]] = [[] for _ in range(processes)]
    scenarios: dict[str, list[pytest.Item]] = {}  # by what they share: a system, or their file's things
    others = []
    long = itertools.count()
    for item in items:
        if item.get_closest_marker("long"):
            shares[next(long) % players].append(item)
        elif item.get_closest_marker("scenario"):
            shares_system = "shared_system" in getattr(item, "fixturenames", ())
            what = "shared_system" if shares_system else item.nodeid.partition("::")[0]
            scenarios.setdefault(what, []).append(item)
        else:
            others.append(item)
    for together in sorted(scenarios.values(), key=len, reverse=True):
        min(shares, key=len).extend(together)
    rest = iter(others)
    ordered: list[pytest.Item] = []
    for number, share in enumerate(shares):
        size = (len(items) - len(ordered)) // (processes - number)
        ordered += (*share, *itertools.islice(rest, max(0, size - len(share))))
    return ordered


def _nothing() -> None:
    """Replace a fixture that pytest-django gives all tests, for a mark or a part of Django that none uses.
    The six took a fourth of the CPU time around a test."""


_dj_autoclear_mailbox = pytest.fixture(_nothing, scope="session")
_django_clear_site_cache = pytest.fixture(_nothing, scope="session")
_django_isolate_apps = pytest.fixture(_nothing, scope="session")
_django_set_urlconf = pytest.fixture(_nothing, scope="session")
_live_server_helper = pytest.fixture(_nothing, scope="session")
_template_string_if_invalid_marker = pytest.fixture(_nothing, scope="session")


@pytest.fixture(scope="session", autouse=True)
def emptied_by_deleting() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TransactionTestCase, "_fixture_teardown", delete_rows)
        yield


@pytest.fixture(scope="session")
def django_db_keepdb(django_db_keepdb: bool, django_db_modify_db_settings: None) -> bool:
    return begin_migrated() or django_db_keepdb


@pytest.fixture(scope="session")
def django_db_setup(request: pytest.FixtureRequest, django_db_blocker: Any) -> Iterator[None]:
    if _forks(request.config):
        with ExitStack() as stack:
            with django_db_blocker.unblock():
                stack.enter_context(own_copy(request.config.workerinput["workerid"]))
            yield
            with django_db_blocker.unblock():
                stack.close()
        return
    request.getfixturevalue("django_db_setup")
    with django_db_blocker.unblock():
        keep_migrated()
        let_be_emptied("default")
    yield
    with django_db_blocker.unblock():
        end_other_sessions("default")


@pytest.fixture(scope="session")
def valkey(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedValkey]:
    """A real server on a unix socket of its own; ends with the session."""
    if find_valkey() is None:
        pytest.skip("no Valkey or Redis server binary on this machine")
    folder = Path(tmp_path_factory.mktemp("v"))
    with EmbeddedValkey(folder, append_only=False) as server:
        yield server


@pytest.fixture(autouse=True)
def ports_of_the_test(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test is a process of its own: the production ports, with all that they keep, are made when it
    first asks for them."""
    from jobs import ports

    make = getattr(ports.production_ports, "__wrapped__", None)
    if make is not None:  # else a fixture of a wider scope has put its own in their place
        monkeypatch.setattr(ports, "production_ports", lru_cache(maxsize=1)(make))


@pytest.fixture(autouse=True)
def artifacts_of_the_test() -> Iterator[None]:
    """A folder of its own, made at the first upload: the emptied database no longer knows the files of the
    test before, and refuses their folder."""
    with override_settings(ARTIFACT_FOLDER=settings.ARTIFACT_FOLDER / uuid.uuid4().hex):
        yield


@pytest.fixture
def fleet() -> str:
    """A hash tag of its own: tests share a server and never a key."""
    return f"t{uuid.uuid4().hex[:12]}"
