"""External changes of a worker's runs: a cancel, a pushed result, a deadline, a server that an operator
switched off, an attempt that a sweep ended."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

from django.db.models import QuerySet
from django.db.models import Value as Constant

from foundation.database import statements
from gpus.models import Server
from gpus.protocol import DesiredState, Lease
from jobs.execution.attempt_run import AttemptRun, Order
from jobs.execution.prefetch import PrefetchedRuns
from jobs.execution.worker_state import RunsInHand
from jobs.models import Attempt, Job, PushedResult
from jobs.ports import Ports

_CANCELLED, _PUSHED, _OFF, _OVER = "cancelled", "pushed", "off", "over"


def apply_external_changes(ports: Ports, runs: RunsInHand, prefetched: PrefetchedRuns) -> None:
    """Read the changes of all runs in hand and of all prefetched ones, and apply them."""
    in_hand = runs.all()
    for _, run in in_hand:
        run.check_time()
    changed = changes_for([*(lease for lease, _ in in_hand), *prefetched.leases()])
    prefetched.cancel(changed.cancelled)
    for lease, run in in_hand:
        if lease.job_id in changed.cancelled:
            run.order(Order.CANCEL)
        if lease.attempt_id in changed.pushed:
            run.nudge()
        if lease.attempt_id in changed.over:
            run.order(Order.ENDED_ELSEWHERE)
    if changed.off:
        # before the index is updated, a claim must not begin a run that would be stopped at once
        ports.registry.clear()
    interrupt_switched_off(in_hand, changed.off)


def interrupt_switched_off(runs: Iterable[tuple[Lease, AttemptRun]], off: Collection[str]) -> None:
    """Stop the runs on servers that an operator switched off; their jobs are queued again, at no cost.

    Only the worker that drives a run may cancel it: one that was handed over, or whose worker died, is
    adopted first. The index grants no lease on such a server. off: names of servers.
    """
    for lease, run in runs:
        if lease.server in off:
            run.order(Order.INTERRUPT)


@dataclass(frozen=True, slots=True)
class Changes:
    """External changes that concern a worker's runs.

    cancelled: ids of jobs whose cancel was requested. pushed: ids of attempts with a pushed result.
    off: names of servers that are switched off. over: ids of attempts whose end is committed.
    """

    cancelled: frozenset[str]
    pushed: frozenset[str]
    off: frozenset[str]
    over: frozenset[str]


def changes_for(leases: Iterable[Lease]) -> Changes:
    """Read the changes that concern the runs under these leases, in one statement."""
    runs = list(leases)
    found: dict[str, list[str]] = defaultdict(list)
    for kind, name in _changed(
        [lease.job_id for lease in runs],
        [lease.attempt_id for lease in runs],
        sorted({lease.server for lease in runs}),
    ):
        found[kind].append(name)
    return Changes(*(frozenset(found[kind]) for kind in (_CANCELLED, _PUSHED, _OFF, _OVER)))


def _rows(jobs: list[str], attempts: list[str], servers: list[str]) -> QuerySet[Any, Any]:
    cancelled = Job.objects.filter(id__in=jobs, cancel_requested_at__isnull=False)
    pushed = PushedResult.objects.filter(attempt_id__in=attempts)
    off = Server.objects.filter(name__in=servers, desired=DesiredState.OFF.value)
    over = Attempt.objects.filter(id__in=attempts).exclude(state__in=Attempt.LIVE)
    others = _as(_PUSHED, pushed, "attempt_id"), _as(_OFF, off, "name"), _as(_OVER, over, "id")
    return _as(_CANCELLED, cancelled, "id").union(*others, all=True)


def _as(kind: str, rows: QuerySet[Any, Any], name: str) -> QuerySet[Any, Any]:
    named: QuerySet[Any, Any] = rows.order_by().annotate(kind=Constant(kind)).values_list("kind", name)
    return named


_changed = statements.ReadAmong((Job, "id"), (PushedResult, "attempt_id"), (Server, "name"), rows=_rows)
