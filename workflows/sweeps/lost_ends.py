"""Nodes whose job, sub-run or wait has ended without a notice. It happens while a worker of a release without
notices still runs; otherwise it is a defect, and the log says so.

Notices for runs that have ended are deleted here, too; a retried dead letter lets its run go on first. That
of a cancelled run is cancelled."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import structlog
from django.db import transaction
from django.db.models import Exists, F, OuterRef, Subquery
from django.db.models.functions import Substr

from jobs.domain.states import FINAL_JOB_STATES
from jobs.models import EndNotice, Job
from jobs.ports import Ports
from jobs.sweeps.base import SweepCount, sweep_rows
from workflows.domain.states import RunState
from workflows.execution.cancelling import cancel_retried, retried_jobs
from workflows.execution.retried import end_postponed, is_cancelled, postponed_of_ended_runs, take_retried
from workflows.models import Node, Run, follower_of

log = structlog.get_logger(__name__)

PERIOD_SECONDS = 60.0
MAX_NODES = 1_000
_FINAL = [state.value for state in FINAL_JOB_STATES]


def sweep(ports: Ports) -> SweepCount:
    """looked: open nodes whose work has ended. repaired: those that got a notice."""
    _delete_for_ended(ports)
    _cancel_retried(ports)
    running = Node.objects.filter(finished_at=None, run__state=RunState.RUNNING.value)
    state = Job.objects.filter(id=OuterRef("job_id"), state__in=_FINAL).values("state")
    over = running.annotate(ended_as=Subquery(state)).exclude(ended_as=None)
    ended: list[tuple[str, str, Any, Any]] = [
        *over.order_by("id").values_list("id", "run_id", "job_id", "ended_as")[:MAX_NODES]
    ]
    runs = Run.objects.filter(parent_node__in=running).exclude(state=RunState.RUNNING.value)
    ended += runs.values_list("parent_node", "parent_node__run_id", "id", "state")[:MAX_NODES]

    def notify(found: tuple[str, str, Any, Any]) -> bool:
        node_id, run_id, ended_id, state = found
        with transaction.atomic():
            if EndNotice.objects.filter(followed_by=follower_of(run_id), ended_id=ended_id).exists():
                return False
            # looked at last: the step that ends the node deletes the notice
            if not Node.objects.filter(id=node_id, finished_at=None).exists():
                return False
            EndNotice.objects.create(
                followed_by=follower_of(run_id), ended_id=ended_id, state=state, at=ports.clock.now()
            )
        log.warning("end_without_notice", run_id=run_id, ended_id=ended_id)
        ports.wake_followers([follower_of(run_id)])
        return True

    return sweep_rows("lost_ends", ended, notify)


def _cancel_retried(ports: Ports) -> None:
    """Cancel retried dead letters whose run was cancelled as they were retried, or while Redis was away."""
    followers = retried_jobs().order_by().values_list("followed_by", flat=True).distinct()[:MAX_NODES]
    runs = Run.objects.filter(id__in=[(follower or "").partition(":")[2] for follower in followers])
    cancel_retried([run.id for run in runs if is_cancelled(run)], ports)


def _delete_for_ended(ports: Ports) -> None:
    ports.wake_followers(end_postponed(postponed_of_ended_runs(MAX_NODES)))
    before = ports.clock.now() - timedelta(seconds=PERIOD_SECONDS)
    live = Run.objects.filter(state=RunState.RUNNING.value, id=OuterRef("run_id"))
    run_id = Substr(F("followed_by"), len(follower_of("")) + 1)
    old = EndNotice.objects.filter(at__lt=before, followed_by__startswith=follower_of(""))
    ended = old.alias(run_id=run_id).filter(~Exists(live))
    retried = ended.filter(round__gt=1, state=RunState.COMPLETED.value).values_list("followed_by", flat=True)
    for follower in set(retried[:MAX_NODES]):
        take_retried(follower.partition(":")[2], ports)
    unread = ended.values_list("id", flat=True)
    if ids := list(unread[:MAX_NODES]):
        EndNotice.objects.filter(id__in=ids).delete()
