"""Nodes whose job, sub-run or wait has ended without a notice. It happens while a worker of a release without
notices still runs; otherwise it is a defect, and the log says so."""

from __future__ import annotations

import structlog
from django.db import transaction
from django.db.models import Exists, OuterRef

from jobs.domain.states import FINAL_JOB_STATES
from jobs.models import EndNotice, Job
from jobs.ports import Ports
from jobs.sweeps.base import SweepCount, sweep_rows
from workflows.domain.states import RunState
from workflows.models import Node, Run, follower_of

log = structlog.get_logger(__name__)

PERIOD_SECONDS = 60.0
MAX_NODES = 1_000
_FINAL = [state.value for state in FINAL_JOB_STATES]


def sweep(ports: Ports) -> SweepCount:
    """looked: open nodes whose work has ended. repaired: those that got a notice."""
    running = Node.objects.filter(finished_at=None, run__state=RunState.RUNNING.value)
    jobs = Job.objects.filter(id=OuterRef("job_id"), state__in=_FINAL)
    ended = [
        (node.run_id, node.job_id or "", Job.objects.values_list("state", flat=True).get(id=node.job_id))
        for node in running.filter(Exists(jobs)).order_by("id")[:MAX_NODES]
    ]
    over = Run.objects.filter(parent_node__in=running).exclude(state=RunState.RUNNING.value)
    ended += over.values_list("parent_node__run_id", "id", "state")[:MAX_NODES]

    def notify(found: tuple[str, str, str]) -> bool:
        run_id, ended_id, state = found
        with transaction.atomic():
            if EndNotice.objects.filter(followed_by=follower_of(run_id), ended_id=ended_id).exists():
                return False
            EndNotice.objects.create(
                followed_by=follower_of(run_id), ended_id=ended_id, state=state, at=ports.clock.now()
            )
        log.warning("end_without_notice", run_id=run_id, ended_id=ended_id)
        ports.wake_followers([follower_of(run_id)])
        return True

    return sweep_rows("lost_ends", ended, notify)
