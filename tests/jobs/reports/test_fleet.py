"""The report of servers with their running jobs."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from gpus.errors import LeasingUnavailable
from gpus.models import QuarantinedSlot, Server
from gpus.reports import CellState
from jobs.reports.fleet import FleetSnapshot, fleet_snapshot
from tests.support.factories import (
    make_job,
    make_model,
    make_running,
    make_server,
    make_tenant,
)
from tests.support.fakes import START, AbsentLeases
from tests.support.fleet_views import Seen, view

pytestmark = pytest.mark.django_db


def look(layer: Any, **asked: Any) -> FleetSnapshot:
    return fleet_snapshot(lambda fleet: layer, START + timedelta(seconds=30), **asked)


def test_a_cell_leads_to_its_job_and_tenant() -> None:
    model = make_model("flux")
    make_server("a", model=model, slots=2)
    job = make_job(model, tenant=make_tenant("globex"))
    attempt = make_running(job, slot="a/1", remote_id="r")
    snapshot = look(Seen(view("a/0"), view("a/1", "leased", job_id=job.id, attempt_id=attempt)))
    assert [cell.state for cell in snapshot.rows[0].cells] == [CellState.FREE, CellState.BUSY]
    assert snapshot.rows[0].cells[1].job_id == job.id
    found = snapshot.attempts["a/1"]
    assert (found.job_id, found.tenant, found.number, found.state) == (job.id, "globex", 1, "waiting")
    assert "a/0" not in snapshot.attempts


@pytest.mark.database
def test_without_redis_the_database_says_what_runs() -> None:
    model = make_model("flux")
    make_server("a", model=model, slots=2)
    job = make_job(model)
    make_running(job, slot="a/1")
    snapshot = look(AbsentLeases())
    idle, busy = snapshot.rows[0].cells
    assert snapshot.away == ("main",)
    assert (idle.state, busy.state) == (CellState.UNKNOWN, CellState.BUSY)
    assert (busy.job_id, busy.model, busy.age_seconds) == (job.id, "flux", 30.0)
    with pytest.raises(LeasingUnavailable):
        AbsentLeases().slots_of(["a"])


@pytest.mark.database
def test_servers_are_filtered_by_pool_name_and_trouble_page_by_page() -> None:
    flux, zimg = make_model("flux"), make_model("zimg")
    for name in ("a1", "a2", "b1"):
        make_server(name, model=flux)
    make_server("a3", model=zimg)
    make_server("drains", model=zimg, desired="draining")
    make_server("sick", model=zimg, healthy=False)
    suspect = make_server("suspect", model=zimg, slots=1)
    row = {"server": suspect, "slot": 0, "reason": "x", "since": START, "until": START}
    QuarantinedSlot.objects.create(**row)
    QuarantinedSlot.objects.create(**(row | {"server": Server.objects.get(name="a1"), "freed_at": START}))

    def names(**asked: Any) -> list[str]:
        return [one.name for one in look(Seen(), **asked).rows]

    assert names(pool="flux") == ["a1", "a2", "b1"]
    assert names(search="A3", pool="zimg") == ["a3"]
    assert names(troubled=True) == ["drains", "sick", "suspect"]
    assert names(page=1, per_page=3) == ["b1", "drains", "sick"]
    assert look(Seen(), page=1, per_page=3).total == 7
    assert names(page=9, per_page=3) == []


def test_the_report_costs_the_same_for_any_number_of_servers_and_jobs(django_assert_num_queries: Any) -> None:
    model = make_model("flux")
    for number in range(30):
        make_server(f"s{number}", model=model)
        make_running(make_job(model), slot=f"s{number}/0")
    with django_assert_num_queries(6):
        assert len(look(Seen()).attempts) == 30
