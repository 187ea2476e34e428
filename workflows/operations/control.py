"""Cancels, pauses and resumes runs."""

from __future__ import annotations

from datetime import datetime

from django.db import transaction
from django.db.models import F

from foundation.database.connections import write_lock
from gpus.registry.audit import record
from jobs.models import EndNotice
from jobs.ports import Ports
from workflows.domain.errors import RunFinished
from workflows.domain.states import RunState
from workflows.execution.cancelling import cancel_retried, cancel_sub_runs, may_be_cancelled
from workflows.execution.notices import due_notice
from workflows.models import Run, follower_of


def cancel_run(run_id: str, *, ports: Ports, by: str | None = None) -> None:
    """Ask for the cancel of a run; it ends once its jobs have. Idempotent. by: the operator, for the audit.
    Raises RunFinished."""
    now = ports.clock.now()
    running = Run.objects.filter(id=run_id, state=RunState.RUNNING.value)
    with write_lock(1), transaction.atomic():
        asked = may_be_cancelled(running).update(cancel_requested_at=now)
        if not asked and not running.exists():
            raise RunFinished
        record(by, "cancel_run", f"run:{run_id}")
    cancel_retried([run_id, *cancel_sub_runs(run_id, now)], ports)
    ports.wake_followers([follower_of(run_id)])
    ports.announce([run_id])


def pause_run(run_id: str, *, ports: Ports, by: str | None = None) -> None:
    """Start no further nodes of a run and its sub-runs of all levels; jobs and waits under way go on.
    Idempotent. by: the operator, for the audit. Raises RunFinished."""
    with write_lock(1), transaction.atomic():
        paused = _set_paused(run_id, ports.clock.now())
        record(by, "pause_run", f"run:{run_id}")
    ports.announce(paused)


def resume_run(run_id: str, *, ports: Ports, by: str | None = None) -> None:
    """Start nodes of a paused run and of its sub-runs again. Idempotent. by: the operator, for the audit.
    Raises RunFinished."""
    with write_lock(1), transaction.atomic():
        resumed = _set_paused(run_id, None)
        record(by, "resume_run", f"run:{run_id}")
        now = ports.clock.now()
        EndNotice.objects.bulk_create([due_notice(one, now) for one in resumed])
    ports.wake_followers([follower_of(one) for one in resumed])


def _set_paused(run_id: str, at: datetime | None) -> list[str]:
    """Pause or resume a run and its sub-runs of all levels. Return them. Raises RunFinished."""
    running = Run.objects.filter(state=RunState.RUNNING.value)
    level, found = [run_id], list[str]()
    while level:
        # in one order of locks, and a level before the next one: then no step begins further sub-runs there
        rows = running.select_for_update().filter(id__in=level).order_by("id")
        level = list(rows.values_list("id", flat=True))
        # a step under way has read the run as it was: it would use up the notice of a resume
        running.filter(id__in=level).update(paused_at=at, steps=F("steps") + 1)
        found += level
        level = list(running.filter(parent_node__run_id__in=level).values_list("id", flat=True))
    if not found:
        raise RunFinished
    return found
