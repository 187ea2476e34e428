"""Values and cost of a scrape, and the completeness of docs/reference/metrics.md."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.db import InterfaceError, OperationalError, connection
from django.test.utils import CaptureQueriesContext
from prometheus_client import Metric
from rest_framework.test import APIClient

from dispatcher_project.settings.dispatcher import DispatcherSettings
from dispatcher_project.supervisor.data_folder import ROOT
from gpus.leasing.values import PoolDepth
from gpus.models import ModelConfig, Pause, QuarantinedSlot
from gpus.protocol import ServerSpec
from jobs.api.metrics import DispatcherCollector
from jobs.models import Callback, Job
from jobs.reports import counters
from jobs.reports.jobs import UNFINISHED
from jobs.sweeps.base import SweepCount, UnwrittenRuns, write_runs
from tests.support import factories as builders
from tests.support.api_harness import Account, ApiHarness
from tests.support.api_jobs import make_job
from tests.support.job_lives import Lives
from tests.support.rollups import sweep
from tests.support.scrapes import scrape

pytestmark = pytest.mark.django_db
PAGE = ROOT / "docs" / "reference" / "metrics.md"


def away(*_: Any, error: type[Exception] = OperationalError) -> None:
    raise error("gone")


def test_queue_and_unfinished_jobs_are_reported(
    anonymous: APIClient, acme: Account, zimg: ModelConfig, api: ApiHarness
) -> None:
    job = make_job(acme.tenant)
    Job.objects.filter(id=job.id).update(created_at=api.clock.now() - timedelta(seconds=90))
    make_job(acme.tenant, "completed")
    api.leases.push("zimg", [job.ticket])
    api.leases.configure_server(ServerSpec("s1", "zimg", 3, ("zimg",)))
    found = scrape(anonymous)
    assert found['dispatcher_jobs{model="zimg",state="queued"}'] == 1
    assert 'dispatcher_jobs{model="zimg",state="completed"}' not in found
    assert 90 <= found['dispatcher_oldest_waiting_seconds{model="zimg"}'] < 100
    assert found['dispatcher_waiting{model="zimg",pool="zimg"}'] == 1
    assert found['dispatcher_slots{pool="zimg",state="free"}'] == 3
    assert found['dispatcher_index_whole{fleet="main"}'] == 1


def test_every_unfinished_state_is_counted_and_waiting_begins_at_run_at(
    anonymous: APIClient, acme: Account, zimg: ModelConfig, api: ApiHarness
) -> None:
    now = api.clock.now()
    came = make_job(acme.tenant)
    day = now - timedelta(days=1)
    Job.objects.filter(id=came.id).update(created_at=day, run_at=now - timedelta(seconds=7))
    make_job(acme.tenant, "scheduled", run_at=now + timedelta(hours=1))
    make_job(acme.tenant, "cancelling")
    found = scrape(anonymous)
    counts = {state: found.get(f'dispatcher_jobs{{model="zimg",state="{state}"}}') for state in UNFINISHED}
    assert counts == {"queued": 1, "scheduled": 1, "cancelling": 1, "running": 0, "retrying": 0}
    assert 7 <= found['dispatcher_oldest_waiting_seconds{model="zimg"}'] < 30


def test_a_running_job_without_a_lease_is_drift(
    anonymous: APIClient, acme: Account, zimg: ModelConfig, api: ApiHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = {"free": 5, "leased": 1, "adoptable": 1, "settling": 3, "quarantined": 1}
    monkeypatch.setattr(api.leases, "depth", lambda pool: PoolDepth(pool, {}, 0, held))
    builders.make_server("gpu-1", model=zimg, slots=3)
    for slot in range(2):
        builders.make_running(builders.make_job(zimg, tenant=acme.tenant), slot=f"gpu-1/{slot}")
    assert scrape(anonymous)['dispatcher_lease_drift{pool="zimg"}'] == 0
    builders.make_running(builders.make_job(zimg, tenant=acme.tenant), slot="gpu-1/2")
    assert scrape(anonymous)['dispatcher_lease_drift{pool="zimg"}'] == 1


@pytest.fixture
def played() -> Lives:
    """Generated jobs that are summed up in rollups."""
    lives = Lives()
    lives.play(40)
    sweep()
    return lives


def test_ended_jobs_are_counted_and_in_the_histograms(anonymous: APIClient, played: Lives) -> None:
    found = scrape(anonymous)
    done = [one for one in played.closed if one.outcome]
    zimg = [one for one in done if one.model == "zimg"]
    completed = [one for one in zimg if one.outcome == "completed"]
    assert found['dispatcher_jobs_finished_total{model="zimg",state="completed"}'] == len(completed) > 0
    started = [one.wait_seconds for one in zimg if one.wait_seconds is not None]
    assert found['dispatcher_wait_seconds_bucket{le="+Inf",model="zimg"}'] == len(started)
    at_most_20 = sum(seconds <= 20 for seconds in started)
    assert found['dispatcher_wait_seconds_bucket{le="20.0",model="zimg"}'] == at_most_20
    ran = [one.run_seconds for one in zimg if one.run_seconds is not None]
    assert found['dispatcher_run_seconds_bucket{le="60.0",model="zimg"}'] == sum(s <= 60 for s in ran)
    held = sum(value for name, value in found.items() if name.startswith("dispatcher_gpu_seconds_total"))
    assert held == pytest.approx(sum(one.gpu_seconds for one in played.closed))
    busy = [one for one in played.closed if (one.model, one.attempt) == ("zimg", "busy")]
    requeued = 'dispatcher_attempts_total{model="zimg",outcome="busy",then="requeued"}'
    assert found[requeued] == sum(one.then == "requeued" for one in busy) > 0


@pytest.mark.database
def test_dead_letters_callbacks_sweeps_quarantine_pauses_and_refusals(
    anonymous: APIClient, acme: Account, zimg: ModelConfig, api: ApiHarness
) -> None:
    now = api.clock.now()
    job = make_job(acme.tenant, "failed")
    Job.objects.filter(id=job.id).update(error_code="timeout")
    Callback.objects.create(
        id="c", job=job, url="u", body="{}", created_at=now, next_at=now - timedelta(seconds=70)
    )
    server = builders.make_server("gpu-1", model=zimg, healthy=False)
    QuarantinedSlot.objects.create(server=server, slot=0, since=now - timedelta(seconds=40), until=now)
    Pause.objects.create(kind="tenant", name=str(acme.tenant.pk), since=now, actor="cli:x")
    write_runs(
        {"fill": UnwrittenRuns(datetime.now(UTC) - timedelta(seconds=600), SweepCount(looked=9, repaired=4))}
    )
    write_runs({"fill": UnwrittenRuns(datetime.now(UTC) - timedelta(seconds=600), SweepCount(repaired=3))})
    counters.add_if_possible(counters.Name.RESULTS_REFUSED, 2)
    counters.add_by_code_if_possible(counters.Name.PUSHES_REFUSED, {"attempt_over": 3})
    for state in ("failed", "completed"):
        Job.objects.filter(id=make_job(acme.tenant, state).id).update(error_code="bad_input")
    found = scrape(anonymous)
    assert found['dispatcher_dead_letters{error="timeout",model="zimg"}'] == 1
    assert found['dispatcher_client_errors{error="bad_input",model="zimg"}'] == 1
    assert not [name for name in found if "dead_letters" in name and "bad_input" in name]
    assert found["dispatcher_callbacks_pending"] == 1
    assert 70 <= found["dispatcher_callbacks_overdue_seconds"] < 80
    assert found['dispatcher_quarantined_slots{server="gpu-1"}'] == 1
    assert 40 <= found["dispatcher_quarantine_oldest_seconds"] < 50
    assert found['dispatcher_server_healthy{server="gpu-1"}'] == 0
    assert found['dispatcher_server_slots{desired="on",pool="zimg",server="gpu-1"}'] == 1
    assert found['dispatcher_paused{kind="tenant",name=""}'] == 1
    assert 600 <= found['dispatcher_sweep_age_seconds{sweep="fill"}'] < 660
    assert found['dispatcher_sweep_period_seconds{sweep="retention"}'] == 3600
    assert found['dispatcher_sweep_repairs_total{sweep="fill"}'] == 7
    assert found["dispatcher_results_refused_total"] == 2
    assert found['dispatcher_pushes_refused_total{code="attempt_over"}'] == 3


def test_the_number_of_queries_does_not_depend_on_finished_jobs(
    anonymous: APIClient, acme: Account, zimg: ModelConfig
) -> None:
    """No query reads finished jobs: each is bounded by states or by rollups."""
    make_job(acme.tenant, "completed")
    with CaptureQueriesContext(
        connection,
    ) as queries:
        assert anonymous.get("/metrics").status_code == 200
    over_jobs = [
        query["sql"] for query in queries if re.search(r'FROM "jobs_(job|attempt|callback)"', query["sql"])
    ]
    assert len(over_jobs) >= 5
    for sql in over_jobs:
        bounded = "LIMIT" in sql or "'queued'" in sql or "'leased'" in sql
        assert bounded, sql
        assert "'completed'" not in sql


def test_unavailable_parts_are_reported_as_down(
    anonymous: APIClient, zimg: ModelConfig, api: ApiHarness
) -> None:
    api.leases.away = True
    found = scrape(anonymous)
    assert (found['dispatcher_up{part="redis"}'], found['dispatcher_up{part="database"}']) == (0, 1)
    assert found["dispatcher_callbacks_pending"] == 0, "the database's metrics stay"
    api.leases.away = False
    for error in (OperationalError, InterfaceError):
        with connection.execute_wrapper(partial(away, error=error)):
            found = scrape(anonymous)
        assert (found['dispatcher_up{part="redis"}'], found['dispatcher_up{part="database"}']) == (1, 0)


def test_a_failing_counter_does_not_raise() -> None:
    with connection.execute_wrapper(away):
        counters.add_if_possible(counters.Name.RESULTS_REFUSED, 1)


def families() -> Iterator[Metric]:
    yield from DispatcherCollector(name_tenants=True).collect()


@pytest.mark.database
def test_the_documentation_lists_exactly_the_metrics_with_their_labels() -> None:
    suffix = {"counter": "_total", "histogram": ""}
    result = {
        f"{one.name}{suffix.get(one.type, '')}": (one.type, set(getattr(one, "_labelnames", ())))
        for one in families()
    }
    rows = re.findall(r"^\| `(dispatcher_\w+)` \| (\w+) \|([^|]*)\|", PAGE.read_text(), re.MULTILINE)
    assert {name: (kind, set(re.findall(r"`(\w+)`", labels))) for name, kind, labels in rows} == result


def test_with_a_token_set_a_request_needs_it(anonymous: APIClient, settings: Any) -> None:
    assert anonymous.get("/metrics").status_code == 200
    settings.DISPATCHER = replace(settings.DISPATCHER, metrics_token="s3cret-token")
    for sent, code in {
        "": "not_authenticated",
        "Bearer ": "invalid_key",
        "Bearer s3cret": "invalid_key",
        "Bearer s3cret-token2": "invalid_key",
        "Bearer schlüssel": "invalid_key",
        "Basic s3cret-token": "invalid_key",
    }.items():
        answer = anonymous.get("/metrics", **({"HTTP_AUTHORIZATION": sent} if sent else {}))
        assert answer.status_code == 401, sent
        assert answer["Content-Type"] == "application/problem+json"
        assert answer["WWW-Authenticate"].startswith("Bearer")
        assert answer.json()["code"] == code
        assert b"dispatcher_up" not in answer.content
    right = anonymous.get("/metrics", HTTP_AUTHORIZATION="Bearer s3cret-token")
    assert right.status_code == 200
    assert b"dispatcher_up" in right.content


def test_tenants_are_named_only_with_the_token(
    anonymous: APIClient, played: Lives, api: ApiHarness, settings: Any
) -> None:
    for name in ("acme", "globex"):
        tenant = builders.make_tenant(name)
        Pause.objects.create(kind="tenant", name=str(tenant.pk), since=api.clock.now(), actor="cli:x")
    total = sum(one.gpu_seconds for one in played.closed if one.model == "zimg")
    found = scrape(anonymous)
    assert found['dispatcher_gpu_seconds_total{model="zimg",tenant=""}'] == pytest.approx(total)
    assert found['dispatcher_paused{kind="tenant",name=""}'] == 1
    assert not re.search("acme|globex|initech", anonymous.get("/metrics").content.decode())
    settings.DISPATCHER = replace(settings.DISPATCHER, metrics_token="s3cret-token")
    anonymous.credentials(HTTP_AUTHORIZATION="Bearer s3cret-token")
    found = scrape(anonymous)
    by_tenant = [
        found[f'dispatcher_gpu_seconds_total{{model="zimg",tenant="{name}"}}']
        for name in ("acme", "globex", "initech")
    ]
    assert sum(by_tenant) == pytest.approx(total)
    assert found['dispatcher_paused{kind="tenant",name="globex"}'] == 1


def test_without_a_token_set_metrics_are_refused(anonymous: APIClient, settings: Any) -> None:
    settings.DISPATCHER = replace(settings.DISPATCHER, metrics_token="")
    for sent in ({}, {"HTTP_AUTHORIZATION": "Bearer "}, {"HTTP_AUTHORIZATION": "Bearer open"}):
        answer = anonymous.get("/metrics", **sent)
        assert (answer.status_code, answer.json()["code"]) == (401, "not_authenticated")
        assert "DISPATCHER_METRICS_TOKEN" in answer.json()["detail"]


@pytest.mark.parametrize("token", ["two words", "schlüssel", "line\nbreak"])
def test_a_token_that_no_header_can_carry_is_refused_at_start(token: str) -> None:
    with pytest.raises(ImproperlyConfigured, match="DISPATCHER_METRICS_TOKEN"):
        DispatcherSettings(metrics_token=token)
