from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import OperationalError, connection
from django.db.migrations.recorder import MigrationRecorder
from rest_framework.test import APIClient

from gpus.protocol import ServerSpec
from jobs.api import health
from jobs.sweeps.ages import Ran, write_runs
from jobs.sweeps.base import SweepCount

from .conftest import Account, World
from .test_jobs import make_job


@pytest.fixture(autouse=True)
def migrations_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "_migrated", False)


def away(*_: Any) -> None:
    raise OperationalError("gone")


def test_alive_needs_nothing(anonymous: APIClient) -> None:
    assert anonymous.get("/livez").json() == {"status": "alive"}


def test_ready_with_everything(anonymous: APIClient, db: None) -> None:
    answer = anonymous.get("/readyz")
    assert (answer.status_code, answer.json()["status"]) == (200, "ready"), answer.content
    assert answer.json()["checks"]["redis"]["generation"] == "g1"


def test_not_ready_without_redis(anonymous: APIClient, db: None, world: World) -> None:
    world.leases.away = True
    answer = anonymous.get("/readyz")
    assert (answer.status_code, answer.json()["checks"]["redis"]["ok"]) == (503, False)


def test_not_ready_while_the_index_is_rebuilt(
    anonymous: APIClient, db: None, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(world.leases, "generation", lambda: None)
    assert anonymous.get("/readyz").status_code == 503


def test_not_ready_without_a_database(anonymous: APIClient, db: None) -> None:
    with connection.execute_wrapper(away):
        answer = anonymous.get("/readyz")
    assert (answer.status_code, answer.json()["checks"]["database"]["ok"]) == (503, False)


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
    assert b'dispatcher_sweep_age_seconds{sweep="fill"}' in anonymous.get("/metrics").content
    assert b'dispatcher_sweep_age_seconds{sweep="tick"}' in anonymous.get("/metrics").content


def test_metrics_count_jobs_and_the_line(
    anonymous: APIClient, acme: Account, zimg: object, world: World
) -> None:
    job = make_job(acme.tenant)
    make_job(acme.tenant, "completed")
    world.leases.push("zimg", [job.ticket])
    world.leases.configure_server(ServerSpec("s1", "zimg", 3, ("zimg",)))
    lines = anonymous.get("/metrics").content.decode().splitlines()
    assert 'dispatcher_jobs{model="zimg",state="queued"} 1.0' in lines
    assert 'dispatcher_jobs{model="zimg",state="completed"} 1.0' in lines
    assert 'dispatcher_waiting{model="zimg",pool="zimg"} 1.0' in lines
    assert 'dispatcher_slots{pool="zimg",state="free"} 3.0' in lines
    assert 'dispatcher_up{part="redis"} 1.0' in lines


def test_metrics_say_what_is_away(anonymous: APIClient, db: None, zimg: object, world: World) -> None:
    world.leases.away = True
    assert 'dispatcher_up{part="redis"} 0.0' in anonymous.get("/metrics").content.decode()
    with connection.execute_wrapper(away):
        assert 'dispatcher_up{part="database"} 0.0' in anonymous.get("/metrics").content.decode()
