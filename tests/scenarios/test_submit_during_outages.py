"""Submits while the database, Valkey or the web process is down: 202 from the committed row, or 503, soon."""

from __future__ import annotations

import os
import signal
import sqlite3
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import psycopg
import pytest
from django.db.models import QuerySet
from pytest_django import DjangoDbBlocker

from dispatcher_client import Client, DispatcherError, Job, Problem, Spooled, Unavailable, transport
from dispatcher_project.supervisor.embedded import find_valkey
from jobs.models import IdempotencyKey
from jobs.models import Job as Row
from tests.support.system.gpu_server import GpuServer
from tests.support.system.judges import Judge
from tests.support.system.running import System
from tests.support.system.times import SOON
from tests.support.waiting import wait_for

pytestmark = pytest.mark.scenario

PROMISED_SECONDS = 3.5
BOUND_SECONDS = 15.0
"""For a 503; the knobs below make it a few seconds, and the machine may be busy."""
CLIENTS = 20
"""More than the web process has threads."""
MODEL = "outages"
DATABASE_SERVER = os.environ.get("DISPATCHER_TEST_DATABASE_URL", "")


if DATABASE_SERVER:

    @pytest.fixture(scope="module")
    def own_system(shared_system: System) -> System:
        return shared_system

else:

    @pytest.fixture(scope="module")
    def own_system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
        """Gives up on a locked database after a second, unlike the shared one, which is under load."""
        if find_valkey() is None:
            pytest.skip("no Valkey or Redis server binary")
        folder = tmp_path_factory.mktemp("f") / "var"
        locked = {"DATABASE_URL": f"sqlite:///{folder}/db.sqlite3?timeout=1"}
        system = System(folder, environment=SOON | locked)
        yield system
        system.stop()


@pytest.fixture(scope="module")
def gpus(own_system: System) -> GpuServer:
    return own_system.add_server(MODEL, slots=4)


@pytest.fixture
def system(own_system: System, gpus: GpuServer, django_db_blocker: DjangoDbBlocker) -> Iterator[System]:
    yield own_system
    Judge(own_system, django_db_blocker).assert_laws()


@pytest.fixture
def judge(system: System, django_db_blocker: DjangoDbBlocker) -> Judge:
    return Judge(system, django_db_blocker)


# -- outages ---------------------------------------------------------------------------------------------


@contextmanager
def stopped(system: System, child: str) -> Iterator[None]:
    pid = system.signal(child, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


@contextmanager
def valkey_killed(system: System) -> Iterator[None]:
    pid = system.signal("valkey", signal.SIGKILL)
    yield
    system.wait_for_successor("valkey", pid)


@contextmanager
def fleet_gone(system: System) -> Iterator[None]:
    """No process listens at its address."""
    (server,) = system.servers
    system.operator.register(MODEL, server.name, "http://127.0.0.1:1/", server.slots, **server.model_fields)
    try:
        yield
    finally:
        system.resize(server, server.slots, **server.model_fields)


@contextmanager
def database_down(system: System) -> Iterator[None]:
    """SQLite: another connection holds the file. PostgreSQL: every connection ends, new ones are refused."""
    url = system.facts["database_url"]
    if not DATABASE_SERVER:
        other = sqlite3.connect(Path(system.folder, "db.sqlite3"), isolation_level=None, timeout=30)
        other.execute("BEGIN EXCLUSIVE")
        try:
            yield
        finally:
            other.close()
        return
    name = url.partition("?")[0].rpartition("/")[2]
    with psycopg.connect(DATABASE_SERVER, autocommit=True) as server:
        server.execute(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS false')  # type: ignore[call-overload]
        try:
            server.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", [name]
            )
            yield
        finally:
            server.execute(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS true')  # type: ignore[call-overload]


@contextmanager
def locked_tables(system: System) -> Iterator[None]:
    """PostgreSQL: another transaction has locked all jobs."""
    with psycopg.connect(system.facts["database_url"]) as other:
        other.execute("LOCK TABLE jobs_job, jobs_idempotencykey, jobs_apikey IN ACCESS EXCLUSIVE MODE")
        yield
        other.rollback()


# -- clients -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Answered:
    """result: a job, or the error that was raised."""

    result: Job | DispatcherError
    seconds: float


def client_of(system: System, **options: Any) -> Client:
    return Client(system.facts["url"], system.facts["tenant_key"], **({"retry_seconds": 0} | options))


def submit_at_once(system: System, count: int = CLIENTS) -> list[Answered]:
    """By so many clients, each of which tries once."""

    def submit(number: int) -> Answered:
        began = time.monotonic()
        try:
            result: Job | DispatcherError = client_of(system).submit(MODEL, {"n": number})
        except DispatcherError as error:
            result = error
        return Answered(result, time.monotonic() - began)

    with ThreadPoolExecutor(count) as threads:
        answers = list(threads.map(submit, range(count)))
    system.tenant.accepted += sum(isinstance(answer.result, Job) for answer in answers)
    return answers


def finish(system: System, job_ids: list[str]) -> None:
    client = client_of(system)
    assert {client.wait(job_id, 60).status for job_id in job_ids} == {"completed"}


Outage = Callable[[System], Any]


@pytest.mark.parametrize(
    "outage",
    [
        lambda system: stopped(system, "gpu_worker"),
        lambda system: stopped(system, "valkey"),
        valkey_killed,
        fleet_gone,
    ],
    ids=["workers stopped", "valkey stopped", "valkey killed", "fleet gone"],
)
def test_a_submit_is_accepted_soon_from_its_row(system: System, judge: Judge, outage: Outage) -> None:
    with outage(system):
        answers = [*submit_at_once(system), *submit_at_once(system, 1)]
        ids = [answer.result.job_id for answer in answers if isinstance(answer.result, Job)]
        assert len(ids) == len(answers), [answer.result for answer in answers]
        assert max(answer.seconds for answer in answers) < PROMISED_SECONDS
        with judge.rows():
            assert Row.objects.filter(id__in=ids).count() == len(ids)
    finish(system, ids)


def assert_all_turned_away(answers: list[Answered], code: str) -> None:
    for answer in answers:
        assert isinstance(answer.result, Problem), answer.result
        assert (answer.result.status, answer.result.code, answer.result.retryable) == (503, code, True)
        assert answer.result.retry_after_seconds is not None
        assert answer.seconds < BOUND_SECONDS


@pytest.mark.database
def test_without_its_database_every_submit_is_refused_with_503(
    system: System, judge: Judge, tmp_path: Path
) -> None:
    spooling = client_of(system, spool=tmp_path / "spool")
    with judge.rows():
        before = _jobs().count()
    with database_down(system):
        answers = submit_at_once(system, 8)
        with pytest.raises(Spooled):
            spooling.submit(MODEL, {"n": "spooled"})
    assert_all_turned_away(answers, "database_unavailable")
    with judge.rows():
        assert _jobs().count() == before
    flushed = Client(
        system.facts["url"], system.facts["tenant_key"], spool=tmp_path / "spool", retry_seconds=60
    ).flush_spool()
    assert (flushed.sent, flushed.left) == (1, 0)
    system.tenant.accepted += 1
    finish(system, _ids(judge))


@pytest.mark.database
@pytest.mark.skipif(not DATABASE_SERVER, reason="SQLite gives up on a lock by itself")
def test_a_database_that_hangs_is_not_waited_for(system: System, judge: Judge) -> None:
    """More clients than threads: requests without a thread are answered as soon as those that hang."""
    before = len(_ids(judge))
    with locked_tables(system):
        answers = submit_at_once(system)
        with urlopen(f"{system.facts['url']}/livez", timeout=5) as alive:
            assert alive.status == 200
    assert_all_turned_away(answers, "no_answer_in_time")
    # the submits that had a thread are committed afterwards, and none of the others
    wait_for(lambda: isinstance(submit_at_once(system, 1)[0].result, Job), what="an accepted submit")
    ids = _ids(judge)
    assert len(ids) - before <= 1 + CLIENTS
    system.tenant.accepted += len(ids) - before - 1  # the last one is counted
    finish(system, ids)


@pytest.mark.database
def test_a_client_that_retries_through_all_of_it_has_one_job(
    system: System, judge: Judge, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The row is committed, the answer is lost with the web process, then the database is away; all the time
    Valkey hangs. The new web process has no script loaded: its threads must not queue up for that."""
    monkeypatch.setattr(transport, "MAX_PAUSE_SECONDS", 1.0)
    key = "through-all-of-it"
    client = client_of(system, retry_seconds=90, timeout_seconds=10)

    with ThreadPoolExecutor(1) as thread, stopped(system, "valkey"):
        # two seconds lie between commit and answer
        submitted = thread.submit(client.submit, MODEL, {"n": 1}, idempotency_key=key)
        wait_for(lambda: _stored(judge, [key]) == 1, what="the row")
        web = system.signal("web", signal.SIGKILL)
        with database_down(system):
            system.wait_for_successor("web", web)
            with pytest.raises(Unavailable, match="database_unavailable"):
                client_of(system).submit(MODEL, {"n": 2})
        answers = submit_at_once(system)
        job = submitted.result(90)
    assert max(answer.seconds for answer in answers) < PROMISED_SECONDS
    system.tenant.accepted += 1
    assert client.wait(job.job_id, 60).status == "completed"
    assert _stored(judge, [key]) == 1
    assert client.submit(MODEL, {"n": 1}, idempotency_key=key).job_id == job.job_id
    finish(system, _ids(judge))


@pytest.mark.database
def test_submits_that_a_web_process_took_with_it_are_one_job_each(
    system: System, judge: Judge, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is killed between the commit of many clients' jobs and their push, which waits for Valkey: they come
    again."""
    monkeypatch.setattr(transport, "MAX_PAUSE_SECONDS", 1.0)
    keys = [f"together-{number}" for number in range(CLIENTS)]

    def submit(key: str) -> str:
        client = client_of(system, retry_seconds=90, timeout_seconds=10)
        return client.submit(MODEL, {"key": key}, idempotency_key=key).job_id

    with ThreadPoolExecutor(CLIENTS) as threads, stopped(system, "valkey"):
        submitted = [threads.submit(submit, key) for key in keys]
        wait_for(lambda: _stored(judge, keys) > 1, what="rows")
        web = system.signal("web", signal.SIGKILL)
        system.wait_for_successor("web", web)
        ids = [one.result(90) for one in submitted]
    system.tenant.accepted += CLIENTS
    assert len(set(ids)) == CLIENTS == _stored(judge, keys)
    finish(system, ids)


def _stored(judge: Judge, keys: list[str]) -> int:
    """Of so many idempotency keys: how many have their row."""
    with judge.rows():
        return IdempotencyKey.objects.filter(key__in=keys).count()


def _ids(judge: Judge) -> list[str]:
    with judge.rows():
        return list(_jobs().values_list("id", flat=True))


def _jobs() -> QuerySet[Row]:
    return Row.objects.filter(model=MODEL)
