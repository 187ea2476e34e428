"""`doctor`: each ill state is found and named, and a well installation has none."""

from __future__ import annotations

import os
import pwd
import tempfile
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from importlib.metadata import EntryPoint
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from django.conf import settings
from django.db import OperationalError, connection
from django.db.migrations.recorder import MigrationRecorder
from redis.exceptions import ConnectionError as RedisGone

from artifacts.models import Artifact
from dispatcher_project.cli.doctor import examine
from dispatcher_project.cli.doctor import fleet as doctor_fleet
from dispatcher_project.cli.doctor.finding import Level, View
from dispatcher_project.supervisor.embedded import EmbeddedValkey
from foundation.ids import new_id
from gpus.errors import Verdict
from gpus.leasing.values import DEFAULT_RULES
from gpus.models import ModelConfig, Pause, Placement, Process, QuarantinedSlot, Server
from gpus.protocol import ReleaseMode
from gpus.runners.registry import GROUP, RunnerRegistry
from jobs.callbacks.deliver import SECRET_UNREADABLE
from jobs.domain.states import JobState
from jobs.models import Callback, CallbackTry, Job
from jobs.sweeps.base import SweepCount, UnwrittenRuns, write_runs
from jobs.transitions import end_waiting, request_cancel
from tests.dispatcher_project.cli.doctor.patient import Patient, patient
from tests.support.queue_harness import queue
from tests.support.terminal import Terminal, terminal

__all__ = ["patient", "queue", "terminal"]
pytestmark = pytest.mark.django_db


def test_a_healthy_system_has_no_findings_but_ok(patient: Patient) -> None:
    patient.queue.job()
    patient.queue.job()
    patient.queue.claim()
    patient.queue.clock.advance(2)
    found = patient.findings()
    assert {one.level for one in found} == {Level.OK}, found
    assert {one.check for one in found} >= {
        "database",
        "redis",
        "disk",
        "index main",
        "beat",
        "workers",
        "servers",
    }


def later(patient: Patient, seconds: float) -> None:
    """Everything that is asked regularly was asked just now."""
    patient.queue.clock.advance(seconds)
    now = patient.queue.clock.now()
    write_runs({"tick": UnwrittenRuns(now, SweepCount()), "fill": UnwrittenRuns(now, SweepCount())})
    Server.objects.update(checked_at=now)


Make = Callable[[Patient], Any]


def an_old_redis(patient: Patient) -> None:
    patient.facts = {"redis_version": "6.2.1", "aof_enabled": 1}


def a_server_that_fails_again_and_again(patient: Patient) -> None:
    leases = patient.queue.leases
    for number in range(DEFAULT_RULES.failures):
        patient.queue.job()
        lease = leases.claim("m", worker="w", attempt_id=f"fails-{number}")
        assert lease is not None
        leases.release(lease.ref, ReleaseMode.ENDED, worker="w", gpu_seconds=1.0, verdict=Verdict.SERVER)
        leases.confirm_ends([lease.ref])
    Job.objects.all().delete()


def a_job_without_lease(patient: Patient) -> None:
    patient.queue.job()
    lease = patient.queue.claim()
    patient.queue.release(lease, ReleaseMode.ENDED)
    patient.queue.leases.confirm_ends([lease.ref])
    later(patient, 100)


def a_job_without_ticket(patient: Patient) -> None:
    patient.queue.job(push=False)
    later(patient, 100)


def an_overdue_retry(patient: Patient) -> None:
    job = patient.queue.job(push=False)
    Job.objects.filter(id=job.id).update(state="retrying", due_at=patient.queue.clock.now())
    later(patient, 100)


def an_overdue_start(patient: Patient) -> None:
    patient.queue.job(push=False, state="scheduled", run_at=patient.queue.clock.now())
    later(patient, 100)


def a_cancel_without_proof(patient: Patient) -> None:
    job = patient.queue.job(push=False)
    Job.objects.filter(id=job.id).update(state="cancelling", cancel_requested_at=patient.queue.clock.now())
    later(patient, 700)


def a_missed_deadline(patient: Patient) -> None:
    patient.queue.job(deadline_at=patient.queue.clock.now())
    later(patient, 100)


def a_cancel_without_end(patient: Patient) -> None:
    job = patient.queue.job()
    lease = patient.queue.claim()
    assert request_cancel(job.id, patient.queue.clock.now())
    later(patient, 700)
    patient.queue.leases.renew("w1", [lease], [])


def a_secret_of_another_key(patient: Patient) -> None:
    Server.objects.update(headers_encrypted="stored under another key")


def a_secret_that_a_callbacks_worker_cannot_read(patient: Patient) -> None:
    """The worker has another key than this process."""
    now = patient.queue.clock.now()
    job = patient.queue.job()
    due = now + timedelta(minutes=5)
    waiting = Callback.objects.create(id="c", job=job, url="u", body="{}", created_at=now, next_at=due)
    CallbackTry.objects.create(callback=waiting, number=1, at=now, error=SECRET_UNREADABLE)


def a_late_callback(patient: Patient) -> None:
    now = patient.queue.clock.now()
    job = patient.queue.job()
    Callback.objects.create(id="c", job=job, url="u", body="{}", created_at=now, next_at=now)
    later(patient, 70)


def a_dead_letter(patient: Patient) -> None:
    job = patient.queue.job(push=False)
    end_waiting(job.id, JobState.FAILED, patient.queue.clock.now(), code="timeout", message="m")


def processes_of_two_hosts(other: str) -> Make:
    def make(patient: Patient) -> None:
        now = patient.queue.clock.now()
        for host, kind in (("web-1", "web"), ("box-2", other)):
            Process.objects.create(name=f"{host}:7:ABCDEF", kind=kind, layout=1, started_at=now, beat_at=now)

    return make


def store_in(patient: Patient, place: object) -> None:
    """For the rest of the test."""
    (patient.folder / "a file").touch()
    patient.settings.setattr(settings, "DISPATCHER", replace(settings.DISPATCHER, artifact_store=str(place)))


def quarantined(patient: Patient, *, minutes: float, limit: float) -> None:
    begin = patient.queue.clock.now() - timedelta(minutes=minutes)
    QuarantinedSlot.objects.create(
        server=Server.objects.get(),
        slot=0,
        reason="timeout",
        since=begin,
        until=begin + timedelta(minutes=limit),
    )


def no_worker_for_waiting_jobs(patient: Patient) -> None:
    patient.queue.job()
    patient.queues = {"sweeps": ["s@h"], "callbacks": ["c@h"]}


def a_model_without_a_server(patient: Patient) -> None:
    patient.queue.job()
    Placement.objects.all().delete()


def a_store_that_is_older_than_the_database(patient: Patient) -> None:
    now = patient.queue.clock.now()
    store_in(patient, patient.folder / "store")
    (patient.folder / "store" / "tmp").mkdir(parents=True)
    Artifact.objects.create(
        id=new_id(0.0), tenant_id=1, sha256="0" * 64, bytes=1, state="stored", created_at=now, expires_at=now
    )


def a_sweep_that_hangs(patient: Patient) -> None:
    write_runs({"fill": UnwrittenRuns(patient.queue.clock.now() - timedelta(seconds=200), SweepCount())})


@pytest.mark.parametrize(
    ("make", "check", "level"),
    [
        (an_old_redis, "redis version", Level.WARNING),
        (lambda p: p.facts.update(maxmemory_policy="allkeys-lru"), "redis eviction", Level.ERROR),
        (lambda p: p.facts.update(maxmemory=100, used_memory=90), "redis memory", Level.WARNING),
        (lambda p: p.facts.update(aof_enabled=0), "redis persistence", Level.WARNING),
        (lambda p: p.facts.update(aof_last_write_status="err"), "redis persistence", Level.ERROR),
        (lambda p: setattr(p, "redis_error", RedisGone("refused")), "redis", Level.ERROR),
        (lambda p: p.queue.flush(), "index main", Level.ERROR),
        (lambda p: setattr(p, "redis_skew", 3.0), "clocks", Level.WARNING),
        (lambda p: setattr(p, "redis_skew", -60.0), "clocks", Level.ERROR),
        (lambda p: setattr(p, "free", 1e9), "disk", Level.WARNING),
        (lambda p: setattr(p, "free", 1e6), "disk", Level.ERROR),
        (lambda p: p.queue.clock.advance(30), "beat", Level.ERROR),
        (a_sweep_that_hangs, "sweep fill", Level.ERROR),
        (lambda p: setattr(p, "queues", None), "broker", Level.ERROR),
        (lambda p: p.queues.pop("sweeps"), "queue sweeps", Level.ERROR),
        (lambda p: p.queues.pop("gpu.m"), "queue gpu.m", Level.WARNING),
        (no_worker_for_waiting_jobs, "queue gpu.m", Level.ERROR),
        (lambda p: Server.objects.update(host="box"), "queue gpu.m.box", Level.WARNING),
        (lambda p: Server.objects.update(desired="off"), "model m", Level.WARNING),
        (a_model_without_a_server, "model m", Level.ERROR),
        (lambda p: p.queue.job(model="gone", push=False), "model gone", Level.ERROR),
        (lambda p: Placement.objects.all().delete(), "server gpu-1", Level.WARNING),
        (lambda p: Server.objects.update(healthy=False), "server gpu-1", Level.ERROR),
        (lambda p: Server.objects.all().delete(), "servers", Level.WARNING),
        (
            lambda p: ModelConfig.objects.update(payload_schema={"pattern": "(?=a)"}),
            "model m",
            Level.ERROR,
        ),
        (
            lambda p: ModelConfig.objects.update(result_schema={"pattern": "(?=a)"}),
            "model m",
            Level.ERROR,
        ),
        (lambda p: quarantined(p, minutes=10, limit=30), "slot gpu-1/0", Level.WARNING),
        (lambda p: quarantined(p, minutes=10, limit=5), "slot gpu-1/0", Level.ERROR),
        (
            lambda p: Pause.objects.create(kind="system", since=p.queue.clock.now(), actor="cli:x"),
            "pause system",
            Level.WARNING,
        ),
        (a_server_that_fails_again_and_again, "server gpu-1", Level.WARNING),
        (a_job_without_lease, "running jobs", Level.ERROR),
        (a_job_without_ticket, "waiting jobs", Level.ERROR),
        (an_overdue_retry, "retries", Level.ERROR),
        (an_overdue_start, "later starts", Level.ERROR),
        (a_cancel_without_proof, "cancelling jobs", Level.WARNING),
        (a_missed_deadline, "deadlines", Level.ERROR),
        (a_cancel_without_end, "cancels", Level.WARNING),
        (a_late_callback, "callbacks", Level.ERROR),
        (a_secret_of_another_key, "secrets", Level.ERROR),
        (a_secret_that_a_callbacks_worker_cannot_read, "callback secrets", Level.ERROR),
        (a_dead_letter, "dead letters", Level.WARNING),
        (processes_of_two_hosts("web"), "artifacts", Level.ERROR),
        (processes_of_two_hosts("gpu"), "artifacts", Level.ERROR),
        (processes_of_two_hosts("sweeps"), "artifacts", Level.ERROR),
        (lambda p: store_in(p, p.folder / "a file"), "artifacts", Level.ERROR),
        (a_store_that_is_older_than_the_database, "artifacts", Level.ERROR),
    ],
)
def test_each_fault_is_found_with_its_consequence_and_advice(
    patient: Patient, make: Make, check: str, level: Level
) -> None:
    make(patient)
    found = patient.ill()
    assert check in found, found
    assert found[check].level is level
    assert found[check].consequence
    assert found[check].advice, "it says what to do"


def test_a_job_that_changes_during_the_check_is_not_stuck(patient: Patient) -> None:
    a_job_without_ticket(patient)
    real = patient.queue.leases

    class MovesMeanwhile:
        def __getattr__(self, name: str) -> Any:
            return getattr(real, name)

        def has_tickets(self, pool: str, tickets: Any) -> list[bool]:
            found = real.has_tickets(pool, tickets)
            end_waiting(
                tickets[0].job_id, JobState.CANCELLED, patient.queue.clock.now(), code="c", message="m"
            )
            return found

    patient.leases = cast(Any, MovesMeanwhile())
    assert "waiting jobs" not in patient.ill()


def test_a_missing_migration_is_found(patient: Patient) -> None:
    MigrationRecorder(connection).migration_qs.filter(app="jobs").delete()
    assert "jobs.0001_initial" in patient.ill()["migrations"].summary


def test_without_a_database_checks_that_need_none_still_run(
    patient: Patient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: object) -> None:
        raise OperationalError("gone")

    drop = SimpleNamespace(close_if_unusable_or_obsolete=lambda: None, cursor=connection.cursor)
    monkeypatch.setattr(examine, "connection", drop)
    with connection.execute_wrapper(away):
        found = patient.findings()
    assert [(one.check, one.level) for one in found] == [
        ("database", Level.ERROR),
        ("redis", Level.OK),
        ("disk", Level.OK),
        ("metrics", Level.OK),
    ]


@pytest.mark.parametrize(("token", "level"), [("", Level.WARNING), ("open", Level.OK), ("s3cret", Level.OK)])
def test_metrics_without_a_token_are_a_warning(
    patient: Patient, settings: Any, token: str, level: Level
) -> None:
    settings.DISPATCHER = replace(settings.DISPATCHER, metrics_token=token)
    (found,) = [one for one in patient.findings() if one.check == "metrics"]
    assert found.level == level
    assert ("DISPATCHER_METRICS_TOKEN" in found.advice) == (not token)
    assert "s3cret" not in str(found)


def test_a_check_that_raises_stops_no_other(patient: Patient) -> None:
    def breaks(view: View) -> Any:
        raise RuntimeError("oh\nno")
        yield

    found = list(examine.examine(patient.view(), [breaks, examine.parts.disk]))
    assert [(one.check, one.level) for one in found] == [
        ("test_examine.breaks", Level.ERROR),
        ("disk", Level.OK),
    ]
    assert found[0].summary == "the check failed: RuntimeError: oh no"


def test_the_exit_status_is_the_worst_finding(
    patient: Patient, terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(examine, "real_view", patient.view)
    assert terminal("doctor").status == 0
    a_dead_letter(patient)
    run = terminal("doctor", "--json")
    assert (run.status, run.json["status"]) == (1, "warning")
    ModelConfig.objects.update(name="m")
    patient.queues = None
    run = terminal("doctor")
    assert run.status == 2
    assert "ERROR    broker: no worker answers through it" in run.said
    assert "→ check that the broker and" in run.said
    assert run.said.endswith("1 error, 1 warning\n")


def test_the_facts_of_a_real_redis_are_read(valkey: EmbeddedValkey, settings: Any) -> None:
    settings.REDIS_URL = valkey.url
    facts = examine.redis_facts()
    assert facts["maxmemory_policy"] == "noeviction"
    assert facts["time"] > 1.7e9
    assert {"used_memory", "aof_enabled"} <= set(facts)


def test_a_web_that_is_degraded_names_its_fleets(patient: Patient) -> None:
    fleets = {"main": {"ok": True}, "far": {"ok": False, "error": "Redis does not answer"}}
    checks = {"database": {"ok": True}, "redis": {"ok": False, "fleets": fleets}}
    patient.web = (503, {"status": "degraded", "checks": checks})
    found = patient.ill()["web"]
    assert found.level is Level.WARNING
    assert "fleet far: Redis does not answer" in found.summary


@pytest.mark.parametrize(
    ("web", "level", "says"),
    [
        (OSError("Connection refused"), Level.WARNING, "does not answer at"),
        ((503, {"status": "not ready", "checks": {"database": {"ok": False}}}), Level.ERROR, "database"),
        ((502, {}), Level.ERROR, "answering 502"),
    ],
)
def test_a_web_that_is_away_or_not_ready_is_found(
    patient: Patient, web: Any, level: Level, says: str
) -> None:
    patient.web = web
    found = patient.ill()["web"]
    assert (found.level, says in found.summary) == (level, True), found


def test_the_advice_for_a_pinned_server_without_its_worker_can_be_followed(patient: Patient) -> None:
    """Its host was the process that ended: no worker can be started under that name."""
    Server.objects.update(host="box-cpu.94efa613", machine="box")
    advice = patient.ill()["queue gpu.m.box-cpu.94efa613"].advice
    assert advice == "start `python3 manage.py gpu_worker --host box-cpu.94efa613`", "an operator's own host"
    Placement.objects.update(endpoint="local://gpu-1/m")
    advice = patient.ill()["queue gpu.m.box-cpu.94efa613"].advice
    assert "94efa613" not in advice
    assert "again on box" in advice
    assert "--name gpu-1`" in advice
    assert "DELETE /api/v1/admin/servers/gpu-1" in advice


def test_a_model_whose_runner_is_gone_is_named(patient: Patient) -> None:
    ModelConfig.objects.update(model_type="gone")
    patient.queue.job()
    found = [one for one in patient.findings() if "no runner 'gone'" in one.summary]
    assert [(one.level, one.check) for one in found] == [(Level.ERROR, "model m")]


def test_a_package_without_a_usable_runner_is_named(
    patient: Patient, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = [EntryPoint("acme", "no_such_package:Acme", GROUP)]
    monkeypatch.setattr(doctor_fleet, "RUNNERS", RunnerRegistry(declared=lambda: broken))
    found = [one for one in patient.findings() if one.check.startswith("runner ")]
    assert [one.level for one in found] == [Level.ERROR]
    assert "acme = no_such_package:Acme" in found[0].check
    assert "ModuleNotFoundError" in found[0].summary


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to other users")
@pytest.mark.parametrize("is_shut_above", [False, True])
def test_root_finds_that_the_services_cannot_write_the_store(patient: Patient, is_shut_above: bool) -> None:
    nobody = pwd.getpwnam("nobody").pw_uid
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        disk, patient.folder = Path(folder), Path(folder, "data")
        disk.chmod(0o755)
        patient.folder.mkdir()
        store = disk / "disk" / "artifacts"
        store.mkdir(parents=True)
        store_in(patient, store)
        assert "artifacts" not in patient.ill(), "the services run as root"
        os.chown(patient.folder, nobody, -1)
        assert "nobody, who owns" in patient.ill()["artifacts"].summary
        os.chown(store, nobody, -1)
        if is_shut_above:
            store.parent.chmod(0o700)
        assert ("artifacts" in patient.ill()) is is_shut_above


def test_a_misspelt_setting_is_named(patient: Patient) -> None:
    patient.settings.setenv("DISPATCHER_RETENTON_DAYS", "4")
    patient.settings.setenv("DISPATCHER_RETENTION_DAYS", "4")
    patient.settings.setenv("DISPATCHER_OF_SOMEBODY_ELSE", "4")
    found = patient.ill()
    assert found.keys() == {"settings"}
    says = "DISPATCHER_RETENTON_DAYS is no setting; DISPATCHER_RETENTION_DAYS is one"
    assert found["settings"].summary == says
