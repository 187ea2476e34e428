"""The role and the user of deploy/least_rights: a real GPU worker runs a job with them, and no more."""

from __future__ import annotations

import io
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest
import redis
from django.db import connection, connections

from artifacts.models import Artifact, ArtifactUse, RunUpload
from dispatcher_project.supervisor.data_folder import ROOT
from dispatcher_project.supervisor.embedded import EmbeddedValkey
from gpu_host.node.config import NodeConfig
from gpu_host.node.server import Node
from gpus.leasing.store import RedisLeases
from gpus.protocol import SystemClock
from gpus.runners.base import RunRequest
from jobs.execution.gpu_worker import GpuWorker
from jobs.execution.worker_state import WorkerProcess
from tests.support.factories import make_model
from tests.support.fakes import PortCalls, make_ports
from tests.support.saving_runner import SavingRunner
from tests.support.waiting import wait_for
from tests.support.worker_harness import make_harness, state

FOLDER = ROOT / "deploy/least_rights"
GRANTED = {
    "artifacts_artifact": "INSERT SELECT UPDATE", "artifacts_artifactuse": "INSERT SELECT UPDATE",
    "artifacts_bytechange": "SELECT", "artifacts_runupload": "DELETE INSERT SELECT UPDATE",
    "artifacts_storefolder": "INSERT SELECT",
    "django_migrations": "SELECT", "gpus_fleetindex": "SELECT", "gpus_pause": "SELECT",
    "jobs_sweeprun": "SELECT", "jobs_tenant": "SELECT",
    "jobs_job": "SELECT UPDATE", "jobs_pushedresult": "SELECT UPDATE",
    "jobs_attempt": "INSERT SELECT UPDATE", "jobs_tally": "INSERT SELECT UPDATE",
    "gpus_auditentry": "INSERT SELECT", "gpus_configversion": "INSERT SELECT",
    "jobs_callback": "INSERT SELECT", "jobs_event": "INSERT SELECT",
    "jobs_endnotice": "INSERT SELECT",
    "gpus_modelconfig": "INSERT SELECT UPDATE", "gpus_pool": "INSERT SELECT UPDATE",
    "gpus_quarantinedslot": "INSERT SELECT UPDATE", "gpus_server": "INSERT SELECT UPDATE",
    "gpus_placement": "DELETE INSERT SELECT UPDATE", "gpus_process": "DELETE INSERT SELECT UPDATE",
    "jobs_workersign": "DELETE INSERT SELECT UPDATE",
}  # fmt: skip
"""All that the role may do, by table."""


@pytest.fixture
def gpu_user(valkey: EmbeddedValkey) -> Iterator[redis.Redis]:
    """A connection as the user of the ACL file's line."""
    _, name, *rules = (FOLDER / "gpu_box.acl").read_text().split()
    owner = redis.Redis.from_url(valkey.url)
    owner.execute_command("ACL", "SETUSER", name, *rules)
    (password,) = (rule[1:] for rule in rules if rule.startswith(">"))
    yield redis.Redis(unix_socket_path=str(valkey.socket), username=name, password=password)
    owner.execute_command("ACL", "DELUSER", name)


@pytest.fixture
def gpu_role(transactional_db: None) -> Iterator[str]:
    """The role; threads that connect from now on are this role."""
    if connection.vendor != "postgresql":
        yield ""
        return
    with connection.cursor() as cursor:
        cursor.execute((FOLDER / "gpu_box.sql").read_text())
    settings: dict[str, Any] = connections.settings["default"]
    owner = settings["USER"]
    yield "dispatcher_gpu"
    settings["USER"] = owner
    with connection.cursor() as cursor:
        cursor.execute("DROP OWNED BY dispatcher_gpu")


@pytest.fixture
def store(settings: Any, tmp_path: Path) -> None:
    """A folder for artifacts, which results of more than 1,000 bytes become."""
    settings.ARTIFACT_FOLDER = tmp_path / "store"
    settings.DISPATCHER = replace(settings.DISPATCHER, inline_result_bytes=1000, artifact_reserve_bytes=0)


def test_a_gpu_user_may_neither_empty_nor_configure_redis(gpu_user: redis.Redis) -> None:
    for words in (
        ("FLUSHALL",), ("FLUSHDB",), ("CONFIG", "GET", "*"), ("ACL", "LIST"), ("KEYS", "*"), ("SHUTDOWN",),
        ("REPLICAOF", "NO", "ONE"), ("MONITOR",),
    ):  # fmt: skip
        with pytest.raises(redis.exceptions.NoPermissionError):
            gpu_user.execute_command(*words)


@pytest.mark.database
def test_a_worker_runs_a_job_with_its_role_and_user_alone(
    valkey: EmbeddedValkey, fleet: str, gpu_user: redis.Redis, gpu_role: str
) -> None:
    node = Node(NodeConfig(handler="gpu_host.node.simulator:run", slots=1, port=0))
    node.start()
    harness = make_harness(valkey.url, fleet, make_model("m"), f"{node.url}/generate", node=node)
    job = harness.submit({"seconds": 0.01})
    harness.ports = make_ports(RedisLeases(gpu_user, fleet), clock=SystemClock(), calls=PortCalls())
    try:
        if gpu_role:
            connections.settings["default"]["USER"] = gpu_role
            with ThreadPoolExecutor(1) as thread:
                assert thread.submit(_user_of_a_new_thread).result() == gpu_role
        harness.work(harness.worker()).join(60)
        wait_for(lambda: state(job) == "completed")
    finally:
        harness.close()
        node.stop()


@pytest.mark.database
@pytest.mark.usefixtures("store")
def test_a_worker_saves_a_file_and_a_long_result_with_its_role(
    valkey: EmbeddedValkey, fleet: str, gpu_user: redis.Redis, gpu_role: str
) -> None:
    def run(request: RunRequest) -> Any:
        return {"file": request.save(io.BytesIO(b"pixels" * 100)), "text": "x" * 5000}

    harness = make_harness(valkey.url, fleet, make_model("m", max_retries=0), "http://127.0.0.1:9/run")
    job = harness.submit()
    harness.ports = make_ports(RedisLeases(gpu_user, fleet), clock=SystemClock(), calls=PortCalls())
    try:
        if gpu_role:
            connections.settings["default"]["USER"] = gpu_role
        worker = GpuWorker(
            harness.ports, WorkerProcess(harness.ports.transport, runners=lambda spec: SavingRunner(run))
        )
        worker.start()
        harness.workers.append(worker)
        harness.work(worker).join(60)
        wait_for(lambda: state(job) == "completed")
    finally:
        harness.close()
    rows = Artifact.objects.order_by("bytes").values_list("bytes", "state")
    assert [state for _, state in rows] == ["stored", "stored"]
    assert ArtifactUse.objects.filter(job=job.id).count() == 2
    assert not RunUpload.objects.exists()


def _user_of_a_new_thread() -> str:
    with connection.cursor() as cursor:
        cursor.execute("SELECT current_user")
        (name,) = cursor.fetchone()
    connection.close()
    return str(name)


def _as_role(role: str) -> psycopg.Connection[Any]:
    one = connection.settings_dict
    return psycopg.connect(
        host=one["HOST"],
        port=one["PORT"] or 5432,
        user=role,
        password="x",
        dbname=one["NAME"],
        autocommit=True,
    )


@pytest.mark.database
def test_the_role_has_the_listed_rights_and_no_others(gpu_role: str) -> None:
    if not gpu_role:
        pytest.skip("SQLite has no roles")
    with _as_role(gpu_role) as box:
        rows = box.execute(
            "SELECT relname, string_agg(privilege, ' ' ORDER BY privilege) FROM pg_class,"
            " unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE', 'TRUNCATE', 'REFERENCES', 'TRIGGER'])"
            " privilege"
            " WHERE relkind IN ('r', 'p', 'v', 'm') AND relnamespace = 'public'::regnamespace"
            " AND has_table_privilege(oid, privilege) GROUP BY relname"
        ).fetchall()
        assert dict(rows) == GRANTED
        refused = [
            "SELECT * FROM auth_user", "SELECT * FROM jobs_apikey", "UPDATE jobs_tenant SET weight = 9",
            "DELETE FROM gpus_auditentry", "DROP TABLE jobs_job", "CREATE TABLE mine (a int)",
            "ALTER ROLE dispatcher_gpu SUPERUSER", "TRUNCATE jobs_job",
        ]  # fmt: skip
        for statement in refused:
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                box.execute(statement)
        assert box.execute("SELECT count(*) FROM jobs_job").fetchone() == (0,)


@pytest.mark.database
def test_a_table_of_a_later_version_is_closed_to_the_role(gpu_role: str) -> None:
    """Also after the file was run again, and one that an older file had opened is closed."""
    if not gpu_role:
        pytest.skip("SQLite has no roles")
    with connection.cursor() as cursor:
        cursor.execute("CREATE TABLE jobs_later (secret text)")
        cursor.execute("GRANT ALL ON jobs_later, auth_user TO dispatcher_gpu")
        try:
            cursor.execute((FOLDER / "gpu_box.sql").read_text())
            with _as_role(gpu_role) as box:
                for table in ("jobs_later", "auth_user"):
                    with pytest.raises(psycopg.errors.InsufficientPrivilege):
                        box.execute(f"SELECT * FROM {table}")
        finally:
            cursor.execute("DROP TABLE jobs_later")
