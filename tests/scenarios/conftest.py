"""One running system for all scenarios of a test process: a start costs three CPU seconds."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
from pytest_django import DjangoDbBlocker

from dispatcher_project.supervisor.embedded import find_valkey
from tests.support.system.commit_killer import CommitKiller
from tests.support.system.judges import Judge
from tests.support.system.running import System
from tests.support.system.times import SOON
from verification.proving.clocks import Clocks

_running = pytest.StashKey[System]()


@pytest.fixture(scope="session")
def clocks(tmp_path_factory: pytest.TempPathFactory) -> Clocks:
    """The wall clocks of the shared system's processes, right until a test shifts one."""
    return Clocks(tmp_path_factory.mktemp("clocks"), ("beat", "gpu_worker", "sweeps", "callbacks"))


@pytest.fixture(scope="session")
def commit_killer(tmp_path_factory: pytest.TempPathFactory) -> CommitKiller:
    """Kills the shared system's processes."""
    return CommitKiller(tmp_path_factory.mktemp("killer"))


@pytest.fixture(scope="package")  # after its last scenario it would idle at 3 % of a core
def shared_system(
    tmp_path_factory: pytest.TempPathFactory,
    request: pytest.FixtureRequest,
    clocks: Clocks,
    commit_killer: CommitKiller,
) -> Iterator[System]:
    if find_valkey() is None:
        pytest.skip("no Valkey or Redis server binary")
    environment = {**clocks.environment, **commit_killer.environment}
    if os.environ.get("DISPATCHER_TEST_DATABASE_URL"):
        environment |= SOON
    system = System(tmp_path_factory.mktemp("s") / "var", environment=environment)
    request.config.stash[_running] = system
    yield system
    system.stop()


@pytest.fixture
def system(shared_system: System, django_db_blocker: DjangoDbBlocker) -> Iterator[System]:
    """Every scenario ends with the laws."""
    yield shared_system
    Judge(shared_system, django_db_blocker).assert_laws()


@pytest.fixture
def judge(system: System, django_db_blocker: DjangoDbBlocker) -> Judge:
    return Judge(system, django_db_blocker)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[Any]) -> Any:
    """A scenario that fails shows the last lines of every process."""
    report = yield
    system = item.config.stash.get(_running, None)
    if report.failed and system is not None and "system" in getattr(item, "fixturenames", ()):
        report.sections += [(f"{name}.log", lines) for name, lines in system.logs()]
    return report
