"""Cancel, retry or dismiss all jobs that match a filter, a bounded number per call.

The audit entry with the jobs' ids is written first: it names them all even if the process dies halfway. Each
job changes in its own short transaction; jobs that changed state meanwhile are skipped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from django.db import transaction
from django.db.models import Case, Q, QuerySet, When

from gpus.registry.audit import record
from jobs import transitions
from jobs.domain.states import JobState
from jobs.models import Job
from jobs.operations.jobs import cancel_each, open_rounds
from jobs.ports import Ports
from jobs.reports.jobs import JobFilter
from jobs.transitions import WAITING

BULK_LIMIT = 1_000
"""Jobs per call, so that a request takes seconds; the caller repeats it while `remaining` is positive."""
_BATCH = 100


class BulkAction(StrEnum):
    CANCEL = "cancel_jobs"
    RETRY = "retry_jobs"
    DISMISS = "dismiss_jobs"


@dataclass(frozen=True, slots=True)
class BulkOutcome:
    """Result of a bulk call. done: jobs changed. remaining: jobs that still match; call again for them.
    refused: jobs that this call selected but that changed state before it reached them. entry: id of the
    audit entry that names the jobs."""

    done: int
    remaining: int
    refused: int
    entry: int | None = field(default=None, compare=False)


def count(chosen: JobFilter, action: BulkAction, ports: Ports) -> int:
    """Return how many jobs the action would change. Changes no job."""
    return _candidates(chosen, action, ports).count()


def cancel_jobs(chosen: JobFilter, *, by: str, ports: Ports, at_most: int = BULK_LIMIT) -> BulkOutcome:
    """Cancel matching jobs: first those that wait, then running ones, whose cancel is requested."""

    def cancel(job_ids: Sequence[str]) -> int:
        return cancel_each(job_ids, ports=ports, by_operator=True)

    return _in_batches(chosen, BulkAction.CANCEL, cancel, by, at_most, ports=ports)


def retry_jobs(chosen: JobFilter, *, by: str, ports: Ports, at_most: int = BULK_LIMIT) -> BulkOutcome:
    """Retry matching dead letters, but for those of cancelled runs. The oldest failures come first, so that a
    job which fails again at once does not keep later calls from reaching the others."""
    return _in_batches(
        chosen, BulkAction.RETRY, lambda job_ids: open_rounds(job_ids, ports), by, at_most, ports=ports
    )


def dismiss_jobs(chosen: JobFilter, *, by: str, ports: Ports, at_most: int = BULK_LIMIT) -> BulkOutcome:
    """Dismiss matching dead letters, the oldest failures first."""

    def dismiss(job_ids: Sequence[str]) -> int:
        with transaction.atomic():
            return transitions.dismiss(job_ids, ports.clock.now())

    return _in_batches(chosen, BulkAction.DISMISS, dismiss, by, at_most, ports=ports)


def _candidates(chosen: JobFilter, action: BulkAction, ports: Ports) -> QuerySet[Job]:
    if action is not BulkAction.CANCEL:
        letters = chosen.dead_letters().order_by("finished_at", "id")
        return ports.retryable(letters) if action is BulkAction.RETRY else letters
    unfinished = [state.value for state in (*WAITING, JobState.RUNNING)]
    requested = Q(state=JobState.RUNNING.value, cancel_requested_at__isnull=False)
    rows = chosen.rows().filter(~requested, state__in=unfinished)
    # waiting jobs first, so that a slot freed by a cancel is not leased to a job that is cancelled next
    return rows.order_by(Case(When(state=JobState.RUNNING.value, then=1), default=0), "id")


def _in_batches(
    chosen: JobFilter,
    action: BulkAction,
    act: Callable[[Sequence[str]], int],
    by: str,
    at_most: int,
    *,
    ports: Ports,
) -> BulkOutcome:
    candidates = _candidates(chosen, action, ports)
    job_ids = list(candidates.values_list("id", flat=True)[:at_most])
    if not job_ids:
        return BulkOutcome(0, 0, 0)
    details = {"filter": chosen.as_json(), "jobs": len(job_ids), "job_ids": job_ids}
    entry = record(by, action.value, "jobs:filter", **details)
    done = sum(act(batch) for batch in _batches(job_ids))
    return BulkOutcome(done, candidates.count(), len(job_ids) - done, entry.pk if entry else None)


def _batches(job_ids: Sequence[str]) -> Iterator[Sequence[str]]:
    return (job_ids[at : at + _BATCH] for at in range(0, len(job_ids), _BATCH))
