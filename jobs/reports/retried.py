"""Outcomes of retried dead letters: how many completed, failed again, or have not ended."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from django.db.models import Case, QuerySet, When

from gpus.models import AuditEntry
from jobs.domain.states import JobState
from jobs.models import Job

MAX_FOLLOWED = 1000
"""Retried jobs whose states are read, the last ones."""
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.05, 0.5


@dataclass(frozen=True, slots=True)
class Retried:
    """Retried jobs by outcome. failed: again. unfinished: queued, running, or between two tries.
    gone: dismissed or removed meanwhile."""

    completed: int
    failed: int
    cancelled: int
    unfinished: int
    gone: int

    @property
    def text(self) -> str:
        """Such as ``1 completed, 2 failed again, 3 not finished yet``."""
        parts = (
            (self.completed, "completed"),
            (self.failed, "failed again"),
            (self.cancelled, "cancelled"),
            (self.unfinished, "not finished yet"),
            (self.gone, "dismissed or removed"),
        )
        return ", ".join(f"{count} {what}" for count, what in parts if count) or "none"


def retried(job_ids: Sequence[str]) -> Retried:
    """Read the states of jobs that were retried. job_ids: at most `MAX_FOLLOWED`."""
    rows = Job.objects.filter(id__in=job_ids, dismissed_at=None).values_list("state", flat=True)
    states = Counter(rows.order_by())
    ended = (JobState.COMPLETED, JobState.FAILED, JobState.CANCELLED)
    completed, failed, cancelled = (states.pop(state.value, 0) for state in ended)
    unfinished = states.total()
    known = completed + failed + cancelled + unfinished
    return Retried(completed, failed, cancelled, unfinished, len(job_ids) - known)


def retried_rows(job_ids: Sequence[str]) -> QuerySet[Job]:
    """Return these jobs for a list, those that failed again first, without payloads and results."""
    failed_first = Case(When(state=JobState.FAILED.value, then=0), default=1)
    rows = Job.objects.filter(id__in=job_ids, dismissed_at=None).defer("payload", "result", "metadata")
    return rows.order_by(failed_first, "-id")


def wait_for_retried(job_ids: Sequence[str], seconds: float) -> Retried:
    """Return `retried` once all jobs have ended, or after so many seconds: jobs whose input is at fault fail
    again within moments."""
    until, pause = time.monotonic() + seconds, _FIRST_PAUSE_SECONDS
    while True:
        found = retried(job_ids)
        left = until - time.monotonic()
        if not found.unfinished or left <= 0:
            return found
        time.sleep(min(pause, left))
        pause = min(pause * 1.5, _LONGEST_PAUSE_SECONDS)


def jobs_of_entries(entries: Sequence[int]) -> list[str]:
    """Return the ids of the jobs that these audit entries of bulk retries name, the last `MAX_FOLLOWED`."""
    rows = AuditEntry.objects.filter(pk__in=entries, action="retry_jobs").order_by("pk")
    found = [job_id for detail in rows.values_list("detail", flat=True) for job_id in detail["job_ids"]]
    return found[-MAX_FOLLOWED:]
