from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import InterfaceError, OperationalError, connection
from django.db.migrations.recorder import MigrationRecorder
from rest_framework.test import APIClient

from jobs.api import health
from jobs.services import ports as wiring
from jobs.sweeps.ages import Ran, write_runs
from jobs.sweeps.base import SweepCount
from tests.builders import WrongClocks

from .conftest import World


@pytest.fixture(autouse=True)
def migrations_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "_migrated", False)


def test_alive_needs_nothing(anonymous: APIClient) -> None:
    assert anonymous.get("/livez").json() == {"status": "alive"}


def test_ready_with_everything(anonymous: APIClient, db: None) -> None:
    answer = anonymous.get("/readyz")
    assert (answer.status_code, answer.json()["status"]) == (200, "ready"), answer.content
    assert answer.json()["checks"]["redis"]["generation"] == "g1"


def test_a_clock_that_is_off_is_named_and_the_process_is_ready(
    anonymous: APIClient, db: None, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert anonymous.get("/readyz").json()["clocks_off"] == {}
    ports = replace(world.ports, clocks=WrongClocks(-7.25))
    monkeypatch.setattr(wiring, "production_ports", lambda: ports)
    answer = anonymous.get("/readyz")
    assert (answer.status_code, answer.json()["clocks_off"]) == (200, {"Redis": -7.2})


def test_not_ready_without_redis(anonymous: APIClient, db: None, world: World) -> None:
    world.leases.away = True
    answer = anonymous.get("/readyz")
    assert (answer.status_code, answer.json()["checks"]["redis"]["ok"]) == (503, False)


def test_not_ready_while_the_index_is_rebuilt(
    anonymous: APIClient, db: None, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(world.leases, "generation", lambda: None)
    assert anonymous.get("/readyz").status_code == 503


@pytest.mark.parametrize("error", [OperationalError, InterfaceError])
def test_not_ready_without_a_database(anonymous: APIClient, db: None, error: type[Exception]) -> None:
    def away(*_: Any) -> None:
        raise error("gone")

    with connection.execute_wrapper(away):
        answer = anonymous.get("/readyz")
    assert (answer.status_code, answer.json()["checks"]["database"]["ok"]) == (503, False)


def test_not_ready_where_migrations_can_not_be_read(
    anonymous: APIClient, db: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: Any) -> None:
        raise InterfaceError("gone")

    monkeypatch.setattr(health, "MigrationExecutor", away)
    answer = anonymous.get("/readyz")
    assert (answer.status_code, answer.json()["checks"]["migrations"]["error"]) == (503, "InterfaceError")


def test_not_ready_with_a_migration_to_apply(anonymous: APIClient, db: None) -> None:
    MigrationRecorder(connection).migration_qs.filter(app="jobs").delete()
    answer = anonymous.get("/readyz")
    assert (answer.status_code, answer.json()["checks"]["migrations"]["ok"]) == (503, False)


def ran(seconds_ago: float) -> Ran:
    return Ran(datetime.now(UTC) - timedelta(seconds=seconds_ago), SweepCount())


def test_the_age_of_beats_last_tick_is_told_whatever_ran_since(anonymous: APIClient, db: None) -> None:
    assert anonymous.get("/readyz").json()["last_sweep_seconds"] is None
    write_runs({"fill": ran(0)})
    assert anonymous.get("/readyz").json()["last_sweep_seconds"] is None, "run by hand"
    write_runs({"fill": ran(0), "tick": ran(600)})
    assert 600 <= anonymous.get("/readyz").json()["last_sweep_seconds"] < 660
