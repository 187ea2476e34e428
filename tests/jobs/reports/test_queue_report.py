"""The queue report per model, from counters in Redis, rollups, and a few rows."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from gpus.errors import LeasingUnavailable
from gpus.leasing.values import PoolDepth
from gpus.models import Pause, Placement, Server
from jobs.domain.states import JobState
from jobs.models import Job, Rollup
from jobs.reports.history import WINDOWS, history
from jobs.reports.queue_report import ModelQueue, QueueSnapshot, queue_snapshot
from jobs.reports.rollups import counted
from tests.support.factories import make_job, make_model, make_running, make_server, make_tenant
from tests.support.fakes import START

pytestmark = pytest.mark.django_db
NOW = START + timedelta(minutes=10)


@dataclass
class Depths:
    depths: dict[str, PoolDepth] = field(default_factory=dict)
    away: bool = False
    asked: int = 0

    def depth(self, pool: str) -> PoolDepth:
        self.asked += 1
        if self.away:
            raise LeasingUnavailable("away")
        return self.depths.get(pool) or PoolDepth(pool, {}, 0, {"free": 1})

    def estimate_seconds(self, model: str, tenant: str) -> float:
        return {"flux": 6.0, "wide": 30.0}.get(model, 1.0)


def look(*, layer: Depths | None = None, **options: Any) -> QueueSnapshot:
    store = layer or Depths()
    return queue_snapshot(
        lambda fleet: store,  # type: ignore[arg-type,return-value]
        NOW,
        history(WINDOWS["1h"], NOW),
        **options,
    )


def by_model(snapshot: QueueSnapshot) -> dict[str, ModelQueue]:
    return {line.model: line for line in snapshot.lines}


@pytest.mark.database
def test_waiting_running_retrying_and_the_oldest() -> None:
    flux, wide = make_model("flux"), make_model("wide", pool="flux")
    make_model("idle")
    server = make_server("a", model=flux)
    Placement.objects.create(server=server, model=wide, endpoint="http://127.0.0.1:9/wide")
    make_job(flux, at=START + timedelta(minutes=2))
    make_job(flux, at=START + timedelta(minutes=1))
    make_job(wide, at=START)
    make_running(make_job(flux, at=START), slot="a/0")
    resting = make_job(wide)
    Job.objects.filter(id=resting.id).update(state=JobState.RETRYING, due_at=NOW)
    slots = {"leased": 1, "free": 1, "off": 5, "quarantined": 2}
    layer = Depths({"flux": PoolDepth("flux", {"flux": 2, "wide": 1}, 0, slots, {"flux": 3})})
    snapshot = look(layer=layer)
    lines = by_model(snapshot)
    assert list(lines) == ["flux", "idle", "wide"]
    one = lines["flux"]
    assert (one.waiting, one.parked, one.all_waiting, one.running, one.retrying) == (2, 3, 5, 1, 0)
    assert one.oldest_seconds == 9 * 60
    assert (lines["wide"].waiting, lines["wide"].retrying, lines["wide"].oldest_seconds) == (1, 1, 600)
    assert (lines["idle"].waiting, lines["idle"].oldest_seconds, lines["idle"].drain_seconds) == (
        0,
        None,
        None,
    )
    assert (snapshot.waiting, snapshot.running, snapshot.oldest_seconds) == (6, 1, 600)
    # two jobs of 6 s and one of 30 s on the two slots that work
    assert one.drain_seconds == lines["wide"].drain_seconds == 21.0
    assert snapshot.working == 3  # with the idle pool's


def test_without_a_working_slot_there_is_no_drain_estimate() -> None:
    make_model("flux")
    layer = Depths({"flux": PoolDepth("flux", {"flux": 2}, 0, {"off": 2, "quarantined": 1})})
    assert look(layer=layer).lines[0].drain_seconds is None


def test_without_a_healthy_server_there_is_no_drain_estimate() -> None:
    server = make_server("a", model=make_model("flux"))
    layer = Depths({"flux": PoolDepth("flux", {"flux": 2}, 0, {"free": 1})})
    assert look(layer=layer).lines[0].drain_seconds == 12.0
    Server.objects.filter(name=server.name).update(healthy=False)
    assert look(layer=layer).lines[0].drain_seconds is None


def test_a_model_without_its_runner_has_a_drain_estimate_on_pinned_servers_only() -> None:
    server = make_server("a", model=make_model("flux", model_type="gone"))
    layer = Depths({"flux": PoolDepth("flux", {"flux": 2}, 0, {"free": 1})})
    assert look(layer=layer).lines[0].drain_seconds is None
    Server.objects.filter(name=server.name).update(host="box-1")
    assert look(layer=layer).lines[0].drain_seconds == 12.0


def test_without_redis_waiting_is_unknown_and_each_fleet_is_tried_once() -> None:
    model = make_model("flux")
    make_model("zimg")
    make_job(model, at=START)
    layer = Depths(away=True)
    snapshot = look(layer=layer)
    line = by_model(snapshot)["flux"]
    assert (line.waiting, line.all_waiting, line.oldest_seconds) == (None, 0, 600)
    assert (snapshot.away, layer.asked) == (("flux", "zimg"), 1)


def test_pauses_are_shown_at_their_subjects() -> None:
    make_model("flux")
    tenant = make_tenant("acme")
    known = {"since": START, "actor": "user:boss"}
    Pause.objects.create(kind=Pause.Kind.MODEL, name="flux", **known)
    Pause.objects.create(kind=Pause.Kind.TENANT, name=str(tenant.pk), **known)
    assert look().system_pause is None
    Pause.objects.create(kind=Pause.Kind.SYSTEM, reason="fire", **known)
    snapshot = look()
    assert snapshot.lines[0].pause is not None
    assert [one.name for one in snapshot.tenant_pauses] == [str(tenant.pk)]
    assert snapshot.system_pause is not None
    assert snapshot.system_pause.reason == "fire"


@pytest.mark.database
def test_shares_are_per_pool_and_include_waiting_tenants() -> None:
    model = make_model("flux")
    acme, globex, waits = make_tenant("acme", weight=3.0), make_tenant("globex"), make_tenant("waits")
    make_tenant("idle", weight=9.0)
    for tenant, seconds in ((acme, 30.0), (globex, 10.0)):
        Rollup.objects.create(
            span_seconds=60, at=START, model="flux", tenant=tenant, completed=4, gpu_seconds=seconds,
            waits=counted(2.0), runs=counted(5.0),
        )  # fmt: skip
    make_job(model, tenant=waits)
    layer = Depths({"flux": PoolDepth("flux", {"flux": 1}, 0, {"leased": 1})})
    line = look(layer=layer).lines[0]
    assert [(one.tenant, one.got, one.entitled) for one in line.shares] == [
        ("acme", 0.75, 0.6),
        ("globex", 0.25, 0.2),
        ("waits", 0.0, 0.2),
    ]
    assert look(layer=layer).shares == {"flux": line.shares}
    assert look(layer=layer, with_shares=False).shares == {}
    assert (line.past.total.completed, line.past.per_minute) == (8, pytest.approx(8 / 60))


def test_retrying_jobs_are_counted_up_to_a_limit() -> None:
    model = make_model("flux")
    for _ in range(3):
        Job.objects.filter(id=make_job(model).id).update(state=JobState.RETRYING, due_at=NOW)
    snapshot = look(most_counted=2)
    assert (snapshot.lines[0].retrying, snapshot.more) == (2, {"retrying"})


def test_scheduled_and_cancelling_jobs_are_shown() -> None:
    model = make_model("flux")
    for _ in range(2):
        make_job(model, state=JobState.SCHEDULED.value, run_at=NOW + timedelta(hours=1))
    Job.objects.filter(id=make_job(model).id).update(state=JobState.CANCELLING)
    snapshot = look()
    assert (snapshot.lines[0].scheduled, snapshot.lines[0].cancelling, snapshot.more) == (2, 1, set())


def test_more_jobs_cost_no_more_queries() -> None:
    model = make_model("flux")
    layer = Depths({"flux": PoolDepth("flux", {"flux": 1}, 0, {"leased": 1})})
    calls = []
    for _ in range(2):
        for _ in range(10):
            make_job(model)
        with CaptureQueriesContext(connection) as queries:
            look(layer=layer)
        calls.append([query["sql"] for query in queries.captured_queries])
    assert len(calls[1]) <= len(calls[0]) <= 14
    over_jobs = [sql for sql in calls[1] if 'FROM "jobs_job"' in sql and "COUNT(" in sql.upper()]
    assert over_jobs == []


@pytest.mark.database
def test_the_oldest_job_is_found_by_an_index() -> None:
    if connection.vendor != "sqlite":
        pytest.skip("the plan of an empty table says nothing elsewhere")
    make_model("flux")
    layer = Depths({"flux": PoolDepth("flux", {"flux": 1}, 0, {"leased": 1})})
    with CaptureQueriesContext(connection) as queries:
        look(layer=layer)
    for query in queries.captured_queries:
        if '"jobs_job"' not in query["sql"]:
            continue
        with connection.cursor() as cursor:
            cursor.execute(f"EXPLAIN QUERY PLAN {query['sql']}")
            plan = [row[3] for row in cursor.fetchall()]
        assert not [step for step in plan if step.startswith("SCAN jobs_job") or "TEMP B-TREE" in step], plan
