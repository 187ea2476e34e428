"""Checks of runs: end notices that no worker reads, runs in which nothing is under way or whose step raises,
and waits without an answer. And of schedules that are silent."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

from django.db.models import Exists, F, OuterRef

from dispatcher_project.cli.doctor.finding import Finding, Level, View
from dispatcher_project.cli.screen import age
from foundation.program import command_line
from foundation.texts import counted
from jobs.models import EndNotice
from workflows.domain.plan import NodeKind
from workflows.domain.states import RunState
from workflows.models import Node, Run, Wait
from workflows.schedules.models import Schedule
from workflows.schedules.operations.pause import AHEAD
from workflows.sweeps.stalled_runs import PERIOD_SECONDS

OLD_NOTICE = timedelta(minutes=1)
LONG_WAIT = timedelta(days=1)
_STALLED_FOR = timedelta(seconds=3 * PERIOD_SECONDS)
_MAX_READ = 100
_NAMED = 3


def end_notices(view: View) -> Iterator[Finding]:
    """Ends of nodes that no worker has read."""
    oldest = EndNotice.objects.order_by("at").values_list("at", flat=True).first()
    if oldest is not None and view.now - oldest > OLD_NOTICE:
        yield Finding(
            Level.ERROR,
            "ends of nodes",
            f"the oldest one has not been read for {age((view.now - oldest).total_seconds())}",
            "Runs of workflows do not go on.",
            f"check that `{command_line('queue_worker --queues callbacks,workflows')}` runs, and beat above",
        )


def stalled_runs(view: View) -> Iterator[Finding]:
    """Running runs without a node under way, for longer than three runs of the sweep that ends them."""
    open_nodes = Node.objects.filter(run_id=OuterRef("id"), finished_at=None)
    last_end = Node.objects.filter(run_id=OuterRef("id"), finished_at__gt=view.now - _STALLED_FOR)
    idle = Run.objects.filter(
        ~Exists(open_nodes),
        ~Exists(last_end),
        state=RunState.RUNNING.value,
        paused_at=None,
        created_at__lt=view.now - _STALLED_FOR,
    )
    yield from _finding(
        Level.ERROR,
        "runs",
        list(idle.order_by("id").values_list("id", flat=True)[: _MAX_READ + 1]),
        noun="run",
        state="running, with no node under way",
        consequence="The sweep `stalled_runs` advances or fails such runs every minute.",
        advice="check beat and the sweeps above, and the log of the sweeps worker",
    )


def failing_runs(view: View) -> Iterator[Finding]:
    """Running runs whose next step raises."""
    failing = Run.objects.filter(state=RunState.RUNNING.value, failing_step=F("steps"))
    yield from _finding(
        Level.ERROR,
        "runs",
        list(failing.order_by("id").values_list("id", flat=True)[: _MAX_READ + 1]),
        noun="run",
        state="failing: the step that advances them raises",
        consequence="It is tried again, and such a run fails after some minutes.",
        advice="`run_step_failed` in the log, and the run's page, have the error; a cancel ends the run",
    )


def unanswered(view: View) -> Iterator[Finding]:
    """Questions to people, and signals, that have been open for a day."""
    waits = Wait.objects.filter(
        kind__in=(NodeKind.HUMAN.value, NodeKind.SIGNAL.value),
        answered_at=None,
        node__started_at__lt=view.now - LONG_WAIT,
    )
    rows = waits.order_by("node_id").values_list("node__run_id", "node__key")[: _MAX_READ + 1]
    yield from _finding(
        Level.WARNING,
        "answers",
        [f"{run_id} {key}" for run_id, key in rows],
        noun="wait",
        state=f"open for more than {age(LONG_WAIT.total_seconds())}",
        consequence="Their runs wait.",
        advice=f"`{command_line('answer')}` lists questions; a wait with expires_seconds ends by itself",
    )


def silent_schedules(view: View) -> Iterator[Finding]:
    """Schedules that start nothing, because a clock was ahead when their due times were handled."""
    ahead = Schedule.objects.filter(handled_at__gt=view.now + AHEAD).order_by("pk")
    yield from _finding(
        Level.WARNING,
        "schedules",
        [f"{tenant}/{name}" for tenant, name in ahead.values_list("tenant__name", "name")[: _MAX_READ + 1]],
        noun="schedule",
        state="silent: a clock was ahead, and due times to come count as handled",
        consequence="They start nothing until the clock has passed these.",
        advice=f"`{command_line('schedule resume NAME --tenant TENANT')}` lets them start from now on",
    )


def _finding(
    level: Level, check: str, found: list[str], *, noun: str, state: str, consequence: str, advice: str
) -> Iterator[Finding]:
    if not found:
        return
    number = f"more than {_MAX_READ} {noun}s" if len(found) > _MAX_READ else counted(len(found), noun)
    named = ", ".join(found[:_NAMED]) + (", …" if len(found) > _NAMED else "")
    verb = "is" if len(found) == 1 else "are"
    yield Finding(level, check, f"{number} {verb} {state} ({named})", consequence, advice)
