"""`top`: its output in text and JSON, also while parts are away."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO
from types import SimpleNamespace

import pytest
from django.db import OperationalError, connection
from rich.console import RenderableType

from dispatcher_project.cli.overview import overview, overview_screen
from dispatcher_project.cli.screen import text_of
from dispatcher_project.management.commands import top
from gpus.models import Pause, QuarantinedSlot, Server
from jobs.domain.states import JobState
from jobs.models import Job
from jobs.sweeps.base import SweepCount, UnwrittenRuns, write_runs
from jobs.transitions import end_waiting
from tests.support.fakes import WrongClocks
from tests.support.queue_harness import QueueHarness
from tests.support.terminal import Screen, Terminal

pytestmark = pytest.mark.django_db


def shown(screen: RenderableType) -> str:
    return text_of([screen], StringIO(), coloured=False)


def test_it_shows_the_fleet_the_queues_and_the_last_failures(queue: QueueHarness, terminal: Terminal) -> None:
    server = queue.server(slots=3)
    lost = queue.job(push=False)
    end_waiting(lost.id, JobState.FAILED, queue.clock.now(), code="timeout", message="too\x1b[2J\nslow")
    queue.job()
    queue.claim()
    waiting = queue.job()
    QuarantinedSlot.objects.create(
        server=server, slot=1, reason="timeout", since=queue.clock.now(), until=queue.clock.now()
    )
    Pause.objects.create(
        kind="tenant", name=str(queue.tenant.pk), since=queue.clock.now(), actor="cli:ann", reason="owes us"
    )
    write_runs({"tick": UnwrittenRuns(queue.clock.now(), SweepCount())})
    queue.clock.advance(20)
    lines = terminal("top").said.splitlines()
    output = terminal("top", "--json").json

    assert "1 waiting  1 running  0 retrying  1 dead letter  " in lines[1]
    assert f"PAUSED tenant {queue.tenant.name}" in lines[2]
    assert lines[2].endswith("by cli:ann: owes us")
    (row,) = (line for line in lines if line.startswith("gpu-1"))
    assert row.split()[:4] == ["gpu-1", "m", "on", "on"]
    assert "█!·" in row
    assert "m 1× up to 20 s" in row
    assert f"{lost.id}  m      timeout  too·[2J slow" in "\n".join(lines)
    assert [slot["state"] for slot in output["fleet"][0]["slots"]] == ["busy", "quarantined", "free"]
    (row,) = output["queues"]
    assert (row["waiting"], row["running"], row["oldest_seconds"]) == (1, 1, pytest.approx(20.0))
    assert output["failures"][0]["error_code"] == "timeout"
    assert Job.objects.get(id=waiting.id).state == "queued"


def test_without_redis_it_shows_the_rows_of_the_database(queue: QueueHarness, terminal: Terminal) -> None:
    queue.server()
    queue.job()
    queue.claim()
    queue.redis_is_gone = True
    run = terminal("top")
    assert run.status == 0
    assert "Redis does not answer" in run.said
    assert "m 1× up to" in run.said


def test_a_clock_that_is_off_is_named(queue: QueueHarness) -> None:
    said = shown(overview_screen(overview(queue.ports)))
    assert "CLOCKS" not in said
    ports = replace(queue.ports, clock_watch=WrongClocks(-90.0))
    said = shown(overview_screen(overview(ports)))
    assert "CLOCKS DISAGREE: the clock of Redis is 90 s behind" in said


def test_on_a_small_terminal_the_fleet_gives_way_to_the_queues(
    queue: QueueHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(30):
        queue.server(f"gpu-{number}")
    monkeypatch.setenv("COLUMNS", "80")
    screen = overview_screen(overview(queue.ports), columns=80, rows=20)
    lines = text_of([screen], Screen(), coloured=False).splitlines()
    assert len(lines) == 20
    assert max(map(len, lines)) <= 80
    assert "… 19 more servers" in lines
    assert lines[-2].split()[-4:] == ["done", "1h", "failed", "1h"]
    assert lines[-1].startswith("m ")


def test_an_empty_installation_is_shown_as_such(terminal: Terminal) -> None:
    said = terminal("top").said
    assert "no server is registered" in said
    assert "no model is registered" in said
    assert "beat never ticked" in said


def test_live_it_shows_an_absent_database_and_recovers(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: object) -> None:
        raise OperationalError("server closed the connection")

    closed: list[bool] = []
    drop = SimpleNamespace(close_if_unusable_or_obsolete=lambda: closed.append(True))
    monkeypatch.setattr(top, "connection", drop)
    command = top.Command()
    with connection.execute_wrapper(away):
        said = shown(command._draw(80, 24))
    assert "the database does not answer (server closed the connection)" in said
    assert closed, "a broken connection is not used again"
    assert "no server is registered" in shown(command._draw(80, 24)), "and goes on"


def test_an_absent_database_is_one_line(terminal: Terminal) -> None:
    Server.objects.count()

    def away(*_: object) -> None:
        raise OperationalError("could not connect\nto server")

    with connection.execute_wrapper(away):
        run = terminal("top", "--once")
    assert (run.status, "check DATABASE_URL" in run.said) == (2, True)
