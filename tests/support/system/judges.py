"""Looks into the database and the leases of a running system from outside."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from django.db import connections
from django.db.utils import ConnectionHandler
from django.test import override_settings
from pytest_django import DjangoDbBlocker

from dispatcher_project.settings.base import database
from gpus.leasing.contract import Leases
from gpus.leasing.store import RedisFleets
from tests.support.fakes import make_ports
from tests.support.laws import assert_laws
from tests.support.system.running import System


class Judge:
    """blocker: pytest-django's; it keeps tests from other databases than the test's."""

    def __init__(self, system: System, blocker: DjangoDbBlocker) -> None:
        self._system = system
        self._blocker = blocker

    @property
    def leases(self) -> Leases:
        return RedisFleets(self._system.facts["redis_url"])("main")

    @contextmanager
    def rows(self) -> Iterator[None]:
        """Inside it the models are the system's."""
        own = connections["default"]
        theirs = ConnectionHandler({"default": database(self._system.facts["database_url"])})["default"]
        with self._blocker.unblock():
            connections["default"] = theirs
            try:
                yield
            finally:
                theirs.close()
                connections["default"] = own

    def assert_laws(self) -> None:
        """Every job must be over by now."""
        ports = make_ports(self.leases)
        peaks = {server.name: server.node.health()["max_running"] for server in self._system.servers}
        with self.rows(), override_settings(ARTIFACT_FOLDER=self._system.folder / "artifacts"):
            assert_laws(drained=True, ports=ports, accepted=self._system.accepted, peak_running=peaks)
