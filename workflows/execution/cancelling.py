"""Cancels nodes that are under way: their jobs, sub-runs and waits. Idempotent; a sweep repeats it."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime

from django.db.models import F, Q, QuerySet

from foundation.database.connections import write_lock
from jobs.models import Job
from jobs.operations.jobs import cancel_each
from jobs.ports import Ports
from workflows.domain.states import NodeState, RunState
from workflows.execution.waits import CANCELLED_BY, end_waits
from workflows.models import Node, Run, Wait, follower_of

MAX_JOBS = 300
"""Jobs that one call cancels: the window of a map with its default of 256, in one or two seconds."""
MAX_WAITS = 1_000
"""Waits that one call ends."""


def cancel_nodes(run: Run, bases: Collection[str] | None, ports: Ports) -> int:
    """Cancel a run's nodes under way, with the children of maps. bases: keys in the definition; None: all.

    Returns how many jobs it cancelled or asked to cancel; the nodes end when their jobs have.
    """
    nodes = Node.objects.filter(run=run, finished_at=None)
    if bases is not None:
        nodes = nodes.filter(base__in=bases)
    job_ids = nodes.exclude(job_id=None).values_list("job_id", flat=True)
    wanted = Job.objects.filter(id__in=job_ids, finished_at=None, cancel_requested_at=None)
    cancelled = _cancel_jobs(wanted, ports)
    now = ports.clock.now()
    children = Run.objects.filter(
        parent_node__in=nodes, state=RunState.RUNNING.value, cancel_requested_at=None
    )
    child_ids = list(children.values_list("id", flat=True))
    if child_ids:
        with write_lock(len(child_ids)):
            children.update(cancel_requested_at=now)
        ports.wake_followers([follower_of(child) for child in child_ids])
    waits = Wait.objects.select_related("node").filter(node__in=nodes, answered_at=None)
    end_waits(list(waits[:MAX_WAITS]), NodeState.CANCELLED, None, by=CANCELLED_BY, ports=ports)
    return cancelled


def _cancel_jobs(wanted: QuerySet[Job], ports: Ports) -> int:
    """Cancel jobs, or ask for it; return how many."""
    return cancel_each(list(wanted.values_list("id", flat=True)[:MAX_JOBS]), ports=ports)


def may_be_cancelled(runs: QuerySet[Run]) -> QuerySet[Run]:
    """Select those of these runs whose cancel was not requested yet. At its deadline a run notes that time
    as its own request; its `on_failure` node, which runs then, can be cancelled."""
    return runs.filter(Q(cancel_requested_at=None) | Q(cancel_requested_at=F("deadline_at")))


def retried_jobs() -> QuerySet[Job]:
    """Select the jobs of runs that were retried as dead letters and have not ended: their nodes have."""
    return Job.objects.filter(
        followed_by__startswith=follower_of(""), round__gt=1, finished_at=None, cancel_requested_at=None
    )


def cancel_retried(run_ids: Collection[str], ports: Ports) -> int:
    """Cancel the retried dead letters of cancelled runs, whose results are dropped; return how many."""
    if not run_ids:
        return 0
    return _cancel_jobs(retried_jobs().filter(followed_by__in=[follower_of(one) for one in run_ids]), ports)


def cancel_sub_runs(run_id: str, now: datetime) -> list[str]:
    """Ask for the cancel of all sub-runs of a run, of all levels: each would start further ones until the
    cancel has come down to it. Return them."""
    level, found = [run_id], list[str]()
    while level:
        running = Run.objects.filter(parent_node__run_id__in=level, state=RunState.RUNNING.value)
        level = list(running.values_list("id", flat=True))
        found += level
        if level:
            with write_lock(len(level)):
                may_be_cancelled(Run.objects.filter(id__in=level)).update(cancel_requested_at=now)
    return found
