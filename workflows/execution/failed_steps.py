"""Steps that raise what no rule foresees: counted for each run, and tried again after growing pauses.

A run whose step raised too often, for too long, is given up: its jobs are cancelled, and it ends as failed
(`workflows.execution.forced_ends` where even that step raises). Only failures in a row count: each step that
is written raises `Run.steps`, whichever process wrote it, and the count belongs to one value of that.
"""

from __future__ import annotations

import traceback
from datetime import datetime, timedelta

import structlog
from django.conf import settings
from django.db import Error, transaction

from artifacts.store.contract import StoreError
from foundation.database.connections import write_lock
from foundation.database.faults import Fault, fault_of
from foundation.texts import printable
from gpus.errors import LeasingUnavailable
from jobs.domain.errors import DEADLINE_EXCEEDED
from jobs.ports import Ports
from jobs.reports import counters
from jobs.reports.counters import Name
from workflows.domain.advance import RUN_CANCELLED, RunEnd
from workflows.domain.states import RunState
from workflows.models import Run

log = structlog.get_logger(__name__)

STEP_FAILED = "step_failed"
FIRST_PAUSE_SECONDS, MOST_PAUSE_SECONDS = 1.0, 120.0
MAX_ERROR = 1_000
"""Characters of an error that a run keeps."""


def is_defect(error: Exception) -> bool:
    """Return True for an error that a repeated step raises again. A value that no row can hold, or a
    statement that the database refuses for its values, is one; an outage is not, nor is a table that another
    release has changed."""
    if isinstance(error, Error):
        return fault_of(error) is Fault.STATEMENT
    return not isinstance(error, StoreError | LeasingUnavailable | OSError)


def is_paused(run: Run, now: datetime) -> bool:
    """Return True if the next step of a run is not to be tried yet. That of a cancelled run is."""
    retry_at = run.step_retry_at
    return run.is_failing and retry_at is not None and now < retry_at and run.cancel_requested_at is None


def note_failed_step(run_id: str, error: Exception, ports: Ports) -> None:
    """Count a failed step of a run. After too many, ask for the run's cancel, which then ends as failed."""
    rows = Run.objects.filter(id=run_id, state=RunState.RUNNING.value)
    run = rows.only(
        "steps", "failing_step", "step_failures", "failing_since", "step_retry_at", "cancel_requested_at"
    ).first()
    if run is None:
        log.error("run_step_failed", run_id=run_id, exc_info=error)
        return
    now = ports.clock.now()
    since = run.failing_since if run.is_failing and run.failing_since is not None else now
    failures = run.step_failures + 1 if run.is_failing else 1
    pause = min(FIRST_PAUSE_SECONDS * 2 ** min(failures - 1, 20), MOST_PAUSE_SECONDS)
    changes = {
        "failing_step": run.steps,
        "step_failures": failures,
        "failing_since": since,
        "step_retry_at": now + timedelta(seconds=pause),
        "step_error": _shown(error),
    }
    limits = settings.DISPATCHER
    seconds = (now - since).total_seconds()
    is_given_up = (
        run.cancel_requested_at is None
        and failures >= limits.workflow_step_failures
        and seconds >= limits.workflow_step_failure_seconds
    )
    if is_given_up:
        changes |= {
            "cancel_requested_at": now,
            "error_code": STEP_FAILED,
            "error_message": _message(error, failures, seconds),
        }
    log.error(
        "run_step_failed",
        run_id=run_id,
        step=run.steps,
        failures=failures,
        given_up=is_given_up,
        next_in=pause,
        exc_info=error,
    )
    with write_lock(1), transaction.atomic():
        # another process may have written the step, or counted its failure
        own = rows.filter(steps=run.steps, failing_step=run.failing_step, step_failures=run.step_failures)
        if own.update(**changes):
            counters.add({(Name.STEP_FAILURES, "", type(error).__name__[:64]): 1})


def end_of_cancelled(run: Run) -> RunEnd:
    """Return the end of a run whose cancel was requested: by a request, its deadline, or as given up."""
    deadline, requested = run.deadline_at, run.cancel_requested_at
    if run.error_code:
        return RunEnd(RunState.FAILED, code=run.error_code, detail=run.error_message)
    if deadline is not None and requested is not None and deadline <= requested:
        return RunEnd(RunState.FAILED, code=DEADLINE_EXCEEDED, detail="the run's deadline passed")
    return RunEnd(RunState.CANCELLED, code=RUN_CANCELLED, detail="The run was cancelled.")


def is_timed_out(run: Run) -> bool:
    """Return True if the deadline of a run has passed, and neither a cancel was requested nor was it given
    up: its `on_failure` node runs."""
    requested = run.cancel_requested_at
    return requested is not None and requested == run.deadline_at and not run.error_code


def _message(error: Exception, failures: int, seconds: float) -> str:
    limits = settings.DISPATCHER
    return (
        f"the step that advances the run raised {type(error).__name__} {failures} times in a row, over "
        f"{seconds:.0f} seconds: a defect of the dispatcher, whose log has the place. A run fails after "
        f"{limits.workflow_step_failures} failures (DISPATCHER_WORKFLOW_STEP_FAILURES) over "
        f"{limits.workflow_step_failure_seconds:.0f} seconds (DISPATCHER_WORKFLOW_STEP_FAILURE_SECONDS). "
        "Restart it once the defect is mended."
    )


def _shown(error: Exception) -> str:
    """Return an error with its place, for operators."""
    frames = traceback.extract_tb(error.__traceback__)
    at = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
    return printable(f"{type(error).__name__}: {error}"[:MAX_ERROR]) + at
