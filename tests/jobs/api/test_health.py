from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest
from django.db import InterfaceError, OperationalError, connection
from django.db.migrations.recorder import MigrationRecorder
from rest_framework.test import APIClient

import jobs.ports
from gpus.errors import LayoutNotInUse, LeasingUnavailable
from gpus.models import Pool
from jobs.api import health
from jobs.sweeps.base import SweepCount, UnwrittenRuns, write_runs
from tests.support.api_harness import ApiHarness
from tests.support.fakes import WrongClocks


def test_livez_needs_no_database_and_no_redis(anonymous: APIClient) -> None:
    assert anonymous.get("/livez").json() == {"status": "alive"}


@pytest.mark.database
def test_readyz_is_ready_with_database_and_redis(anonymous: APIClient, db: None) -> None:
    answer = anonymous.get("/readyz")
    assert (answer.status_code, answer.json()["status"]) == (200, "ready"), answer.content
    assert answer.json()["checks"]["redis"]["fleets"] == {"main": {"ok": True, "generation": "g1"}}


@pytest.mark.database
def test_a_wrong_clock_is_named_and_the_process_is_ready(
    anonymous: APIClient, db: None, api: ApiHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert anonymous.get("/readyz").json()["clocks_off"] == {}
    ports = replace(api.ports, clock_watch=WrongClocks(-7.25))
    monkeypatch.setattr(jobs.ports, "production_ports", lambda: ports)
    answer = anonymous.get("/readyz")
    assert (answer.status_code, answer.json()["clocks_off"]) == (200, {"Redis": -7.2})


def test_without_redis_the_process_is_degraded_and_keeps_serving(
    anonymous: APIClient, db: None, api: ApiHarness
) -> None:
    api.leases.away = True
    answer = anonymous.get("/readyz")
    assert (answer.status_code, answer.json()["status"]) == (200, "degraded")
    assert answer.json()["checks"]["redis"] == {
        "ok": False,
        "fleets": {"main": {"ok": False, "generation": None, "error": "Redis does not answer"}},
    }
    assert anonymous.get("/readyz?strict=1").status_code == 503


def test_during_a_rebuild_the_process_is_degraded(
    anonymous: APIClient, db: None, api: ApiHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api.leases, "generation", lambda: None)
    assert anonymous.get("/readyz").json()["status"] == "degraded"
    assert anonymous.get("/readyz?strict=1").status_code == 503


def test_a_process_whose_layout_is_not_in_use_is_ready_and_says_so(
    anonymous: APIClient, db: None, api: ApiHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the last host of the old version could not be restarted."""

    def refuse() -> str:
        raise LayoutNotInUse("the index of main has layout 6")

    monkeypatch.setattr(api.leases, "generation", refuse)
    answer = anonymous.get("/readyz?strict=1")
    assert (answer.status_code, answer.json()["status"]) == (200, "ready")
    assert answer.json()["checks"]["redis"]["fleets"]["main"]["note"] == "the index of main has layout 6"


class Fleets:
    """Hung, unavailable and working fleets. asked: number of calls to the hung ones."""

    def __init__(self) -> None:
        self.over = threading.Event()
        self.asked = 0

    def __call__(self, fleet: str) -> Fleets:
        return self if fleet.startswith("hangs") else Answers(fleet)  # type: ignore[return-value]

    def generation(self) -> str:
        self.asked += 1
        self.over.wait(60)
        return "late"


@dataclass
class Answers:
    fleet: str

    def generation(self) -> str:
        if self.fleet == "away":
            raise LeasingUnavailable("away")
        return "g7"


@pytest.fixture
def fleets(db: None, api: ApiHarness, monkeypatch: pytest.MonkeyPatch) -> Iterator[Fleets]:
    names = ["away", "hangs-1", "hangs-2", "hangs-3", "well"]
    for name in names:
        Pool.objects.create(name=f"pool-{name}", fleet=name)
    found = Fleets()
    ports = replace(api.ports, leases=found)  # type: ignore[arg-type]
    monkeypatch.setattr(jobs.ports, "production_ports", lambda: ports)
    yield found
    found.over.set()


def test_every_fleet_is_named_and_hung_ones_take_two_seconds_in_total(
    anonymous: APIClient, fleets: Fleets
) -> None:
    began = time.monotonic()
    body = anonymous.get("/readyz").json()
    seconds = time.monotonic() - began
    assert body["status"] == "degraded"
    ok = {name: fleet["ok"] for name, fleet in body["checks"]["redis"]["fleets"].items()}
    assert ok == {
        "away": False, "hangs-1": False, "hangs-2": False, "hangs-3": False, "main": True, "well": True,
    }  # fmt: skip
    assert 2.0 <= seconds < 4.0


def test_a_hung_fleet_is_not_probed_again_before_it_answers(
    anonymous: APIClient, fleets: Fleets, monkeypatch: pytest.MonkeyPatch, api: ApiHarness
) -> None:
    probes = jobs.ports.production_ports().readiness.probes
    monkeypatch.setattr(probes, "run", partial(probes.run, seconds=0.05))
    for _ in range(3):
        anonymous.get("/readyz")
    assert fleets.asked == 3, "each of the three hung fleets once"


@pytest.mark.database
@pytest.mark.parametrize("error", [OperationalError, InterfaceError])
def test_not_ready_without_a_database(anonymous: APIClient, db: None, error: type[Exception]) -> None:
    def away(*_: Any) -> None:
        raise error("gone")

    with connection.execute_wrapper(away):
        answer = anonymous.get("/readyz")
    assert (answer.status_code, answer.json()["checks"]["database"]["ok"]) == (503, False)


@pytest.mark.database
def test_not_ready_with_unreadable_migrations(
    anonymous: APIClient, db: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: Any) -> None:
        raise InterfaceError("gone")

    monkeypatch.setattr(health, "MigrationExecutor", away)
    answer = anonymous.get("/readyz")
    assert (answer.status_code, answer.json()["checks"]["migrations"]["error"]) == (503, "InterfaceError")


@pytest.mark.database
def test_not_ready_with_a_migration_to_apply(anonymous: APIClient, db: None) -> None:
    MigrationRecorder(connection).migration_qs.filter(app="jobs").delete()
    answer = anonymous.get("/readyz")
    assert (answer.status_code, answer.json()["checks"]["migrations"]["ok"]) == (503, False)


def ran(seconds_ago: float) -> UnwrittenRuns:
    return UnwrittenRuns(datetime.now(UTC) - timedelta(seconds=seconds_ago), SweepCount())


def test_the_age_of_the_last_tick_ignores_other_sweeps(anonymous: APIClient, db: None) -> None:
    assert anonymous.get("/readyz").json()["last_sweep_seconds"] is None
    write_runs({"fill": ran(0)})
    assert anonymous.get("/readyz").json()["last_sweep_seconds"] is None, "run by hand"
    write_runs({"fill": ran(0), "tick": ran(600)})
    assert 600 <= anonymous.get("/readyz").json()["last_sweep_seconds"] < 660
