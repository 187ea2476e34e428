"""A backup that is made while jobs run is whole, and the jobs go on where it is restored."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from django.conf import settings
from django.db import connection, connections, transaction

from dispatcher_project.supervisor.backup import backup
from dispatcher_project.supervisor.data_folder import DataFolder
from dispatcher_project.supervisor.restore import restore
from foundation.ids import new_id
from gpus.protocol import Lease, ReleaseMode
from jobs import transitions
from jobs.domain.retry import Ending, RetryPolicy
from jobs.domain.states import JobState
from jobs.models import Job
from jobs.sweeps import expired_leases
from jobs.transitions import End
from tests.support.laws import assert_laws
from tests.support.queue_harness import LEASE_SECONDS, QueueHarness, queue
from tests.support.rebuilds import rebuild
from tests.support.waiting import wait_for

pytestmark = pytest.mark.database

__all__ = ["queue"]
KEY = {"DJANGO_SECRET_KEY": settings.SECRET_KEY}
BEFORE, AFTER = 20, 5


@pytest.fixture
def elsewhere(transactional_db: None, tmp_path: Path) -> Iterator[str]:
    """Name of an empty database; at the end the process has the tests' database again."""
    name = connection.settings_dict["NAME"]
    if connection.vendor == "sqlite":
        new = str(tmp_path / "restored.sqlite3")
        yield new
        _use(name)
        return
    if shutil.which("pg_dump") is None:
        pytest.skip("no client programs of PostgreSQL")
    new = f"{name}_elsewhere"
    with psycopg.connect(_url("postgres"), autocommit=True) as server:
        server.execute(f'DROP DATABASE IF EXISTS "{new}" WITH (FORCE)')
        server.execute(f'CREATE DATABASE "{new}"')
        yield new
        _use(name)
        server.execute(f'DROP DATABASE "{new}" WITH (FORCE)')


def _url(database: str) -> str:
    if connection.vendor == "sqlite":
        return f"sqlite:///{database}"
    one: dict[str, Any] = connection.settings_dict
    host = f"{one['HOST'] or '127.0.0.1'}:{one['PORT'] or 5432}"
    return f"postgresql://{one['USER']}:{one['PASSWORD'] or 'x'}@{host}/{database}"


def _use(database: str) -> None:
    connection.close()
    connections.settings["default"]["NAME"] = connection.settings_dict["NAME"] = database


def end(queue: QueueHarness, lease: Lease) -> None:
    ending, at = Ending(), queue.clock.now()
    ref = lease.ref
    with transaction.atomic():
        transitions.end_attempt(
            End(ref.job_id, ref.attempt_id, ref.epoch, ref.slot, ending, RetryPolicy(), at, result={"n": 1})
        )
    queue.release(lease, ReleaseMode.FREE)


def work_off(queue: QueueHarness) -> None:
    """Run all jobs, as a new worker that adopts the runs of the one before."""
    while (following := queue.leases.claim("m", worker="w2", attempt_id=new_id())) is not None:
        with transaction.atomic():
            if not following.adopted:
                queue.start(following)
            elif following.epoch > 1:
                before = following.epoch - 1
                assert transitions.take_over(
                    following.job_id, following.attempt_id, before, "w2", queue.clock.now()
                )
        end(queue, following)


def test_jobs_continue_from_a_backup_that_was_made_while_others_were_submitted_and_ended(
    elsewhere: str, queue: QueueHarness, tmp_path: Path
) -> None:
    queue.server(slots=2)
    submitted: list[str] = []
    is_over = threading.Event()

    def work() -> None:
        """Submit and end jobs until the backup is there."""
        try:
            while not is_over.is_set():
                with transaction.atomic():  # so that the backup has no other run than the held one
                    submitted.append(queue.job().id)
                    end(queue, queue.claim())
        finally:
            connection.close()

    with transaction.atomic():
        held = queue.job()
        lease = queue.claim()
        queue.accept(lease)
    worker = threading.Thread(target=work)
    worker.start()
    try:
        wait_for(lambda: len(submitted) > BEFORE or not worker.is_alive(), what="jobs before the backup")
        backup(
            tmp_path / "b.tar",
            DataFolder(tmp_path / "old"),
            {**KEY, "DATABASE_URL": _url(str(connection.settings_dict["NAME"]))},
        )
        known = len(submitted)
        wait_for(lambda: len(submitted) > known + AFTER or not worker.is_alive(), what="jobs after it")
    finally:
        is_over.set()
        worker.join(60)
    end(queue, lease)
    assert set(Job.objects.values_list("state", flat=True)) == {JobState.COMPLETED}

    restore(
        tmp_path / "b.tar",
        DataFolder(tmp_path / "new"),
        {**KEY, "DATABASE_URL": _url(elsewhere)},
        overwrite=False,
    )
    _use(elsewhere)
    queue.flush()
    rebuild(queue)
    found = list(Job.objects.order_by("id").values_list("id", flat=True))
    assert BEFORE < len(found) < len(submitted) + 1, "a moment between the first and the last"
    assert found == [held.id, *submitted][: len(found)], "every job before that moment, and no other"
    assert Job.objects.get(id=held.id).state == JobState.RUNNING
    queue.clock.advance(LEASE_SECONDS + 0.1)
    expired_leases.sweep(queue.ports)  # its worker of then is gone; its run is adopted
    work_off(queue)
    assert Job.objects.get(id=held.id).attempts.get().id == lease.attempt_id
    states = dict(Job.objects.exclude(state=JobState.COMPLETED).values_list("id", "state"))
    assert states == {}
    assert_laws(drained=True, ports=queue.ports, accepted=len(found))
