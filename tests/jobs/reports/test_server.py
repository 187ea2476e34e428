"""The latest attempts of one server, and their failures by cause."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest

from foundation.ids import new_id
from gpus.leasing.values import SlotView
from jobs.models import Attempt
from jobs.reports.fleet import server_snapshot
from jobs.reports.server import MAX_RUNS, Run, failures_by_cause, latest_runs
from tests.support.factories import make_job, make_model, make_running, make_server
from tests.support.fakes import START
from tests.support.fleet_views import Seen, view

pytestmark = pytest.mark.django_db


def make_attempts(count: int, *, at: datetime, **values: Any) -> None:
    job = make_job(make_model(f"m-{Attempt.objects.count()}"))
    known = {"job": job, "server": "a", "slot": 0, "model": "flux", "state": "completed", **values}
    Attempt.objects.bulk_create(
        Attempt(
            id=new_id(), number=number, started_at=at - timedelta(seconds=number), finished_at=at, **known
        )
        for number in range(count)
    )


@pytest.mark.database
def test_a_busy_servers_runs_are_those_of_the_last_hour() -> None:
    make_attempts(20, at=START)
    make_attempts(5, at=START - timedelta(hours=2))
    make_attempts(3, at=START, server="b")
    runs = latest_runs("a", 2, START)
    assert len(runs) == 20
    assert runs[0].started_at == START
    assert [run.started_at for run in runs] == sorted((run.started_at for run in runs), reverse=True)


def test_an_idle_servers_runs_are_those_of_the_last_week() -> None:
    make_attempts(3, at=START)
    make_attempts(5, at=START - timedelta(days=6))
    make_attempts(7, at=START - timedelta(days=8))
    assert len(latest_runs("a", 2, START)) == 8
    assert latest_runs("nobody", 2, START) == []


def test_runs_are_bounded_in_number_and_in_text() -> None:
    make_attempts(MAX_RUNS + 9, at=START, slot=9, error_message="x" * 5000)
    runs = latest_runs("a", 2, START)
    assert len(runs) == MAX_RUNS
    assert runs[0].message == "x" * 300


@pytest.mark.database
def test_failures_are_counted_by_their_code() -> None:
    make_attempts(2, at=START, state="failed", error_code="timeout", error_message="too slow\nTraceback")
    make_attempts(3, at=START - timedelta(minutes=1), state="lost", error_code="server_lost")
    make_attempts(4, at=START, state="refused", error_code="server_busy")
    make_attempts(1, at=START)
    causes = failures_by_cause(latest_runs("a", 2, START))
    assert [(cause.error_code, cause.count) for cause in causes] == [("server_lost", 3), ("timeout", 2)]
    assert causes[1].last.summary == "too slow"
    assert causes[1].last.started_at == START


def test_a_run_lasts_until_its_end() -> None:
    values: dict[str, Any] = {"job_id": "j", "number": 1, "slot": 0, "model": "m", "message": ""}
    run = Run("a", state="sent", error_code="", started_at=START, finished_at=None, **values)
    assert (run.seconds, run.has_failed) == (None, False)


@pytest.mark.database
def test_one_servers_snapshot_has_its_slots_and_attempts() -> None:
    model = make_model("flux")
    make_server("a", model=model, slots=1)
    make_server("ab", model=model, slots=1)
    job = make_job(model)
    attempt = make_running(job, slot="a/0")
    seen: list[SlotView] = [view("a/0", "leased", job_id=job.id, attempt_id=attempt), view("ab/0")]
    layer: Any = Seen(*seen)
    found = server_snapshot("a", lambda fleet: layer, START)
    assert found is not None
    assert [row.name for row in found.rows] == ["a"]
    assert found.attempts["a/0"].job_id == job.id
    assert server_snapshot("b", lambda fleet: layer, START) is None
