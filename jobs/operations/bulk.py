"""What operators do to many jobs at once: all that match a filter, a bounded number per call.

Each call leaves one audit entry with the jobs' ids, written before the first deed: who dies in the middle has
still said what it was about to do. Each job moves in its own short transaction; one that moved on meanwhile
is left alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from django.db import transaction
from django.db.models import Case, Q, QuerySet, When

from gpus.registry.audit import record
from jobs import transitions
from jobs.domain.errors import NotCancellable
from jobs.domain.states import JobState
from jobs.execution.follow_ups import after_ends
from jobs.models import Job
from jobs.operations.jobs import CancelOutcome, move_to_cancelled, open_rounds
from jobs.ports import Ports
from jobs.reports.job_filter import JobFilter
from jobs.transitions import WAITING, Ended

__all__ = ["BulkAction", "BulkOutcome", "JobFilter", "cancel_jobs", "count", "dismiss_jobs", "retry_jobs"]

AT_MOST = 1_000
"""A request takes seconds, not minutes; whoever means more asks again."""
_BATCH = 100


class BulkAction(StrEnum):
    CANCEL = "cancel_jobs"
    RETRY = "retry_jobs"
    DISMISS = "dismiss_jobs"


@dataclass(frozen=True, slots=True)
class BulkOutcome:
    """refused: chosen by this call, and moved on before it came to them. remaining: match and are left; ask
    again for them."""

    done: int
    remaining: int
    refused: int


def count(chosen: JobFilter, deed: BulkAction | None = None) -> int:
    """How many the deed would be done to; without one, how many match. Does nothing."""
    return (chosen.rows() if deed is None else _candidates(chosen, deed)).count()


def cancel_jobs(chosen: JobFilter, *, by: str, ports: Ports, at_most: int = AT_MOST) -> BulkOutcome:
    """Those that wait are cancelled, first of all; those that run are asked to stop."""

    def cancel(job_ids: Sequence[str]) -> int:
        ended: list[Ended] = []
        asked: list[str] = []
        for job_id in job_ids:
            try:
                outcome, end = move_to_cancelled(job_id, ports, by_operator=True)
            except (NotCancellable, Job.DoesNotExist):
                continue
            ended.append(end)
            if outcome is CancelOutcome.REQUESTED:
                asked.append(job_id)
        after_ends(ended, ports)
        ports.announce(asked)
        return len(ended)

    return _in_batches(chosen, BulkAction.CANCEL, cancel, by, at_most)


def retry_jobs(chosen: JobFilter, *, by: str, ports: Ports, at_most: int = AT_MOST) -> BulkOutcome:
    """Dead letters only. Those that failed longest ago come first, so that one which fails again at once does
    not stand in the way of the others."""
    return _in_batches(chosen, BulkAction.RETRY, lambda job_ids: open_rounds(job_ids, ports), by, at_most)


def dismiss_jobs(chosen: JobFilter, *, by: str, ports: Ports, at_most: int = AT_MOST) -> BulkOutcome:
    """Dead letters only, those that failed longest ago first."""

    def dismiss(job_ids: Sequence[str]) -> int:
        with transaction.atomic():
            return transitions.dismiss(job_ids, ports.clock.now())

    return _in_batches(chosen, BulkAction.DISMISS, dismiss, by, at_most)


def _candidates(chosen: JobFilter, deed: BulkAction) -> QuerySet[Job]:
    if deed is not BulkAction.CANCEL:
        return chosen.dead_letters().order_by("finished_at", "id")
    unfinished = [state.value for state in (*WAITING, JobState.RUNNING)]
    asked = Q(state=JobState.RUNNING.value, cancel_requested_at__isnull=False)
    rows = chosen.rows().filter(~asked, state__in=unfinished)
    # what waits goes first, so that no slot which a cancel frees is given to a job to be cancelled
    return rows.order_by(Case(When(state=JobState.RUNNING.value, then=1), default=0), "id")


def _in_batches(
    chosen: JobFilter, deed: BulkAction, act: Callable[[Sequence[str]], int], by: str, at_most: int
) -> BulkOutcome:
    candidates = _candidates(chosen, deed)
    job_ids = list(candidates.values_list("id", flat=True)[:at_most])
    if not job_ids:
        return BulkOutcome(0, 0, 0)
    record(by, deed.value, "jobs:filter", filter=chosen.as_json(), jobs=len(job_ids), job_ids=job_ids)
    done = sum(act(batch) for batch in _batches(job_ids))
    return BulkOutcome(done, candidates.count(), len(job_ids) - done)


def _batches(job_ids: Sequence[str]) -> Iterator[Sequence[str]]:
    return (job_ids[at : at + _BATCH] for at in range(0, len(job_ids), _BATCH))
