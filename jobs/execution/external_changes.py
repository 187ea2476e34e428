"""External changes of the runs in hand: cancels, results that GPU servers pushed, servers that an operator
switched off, attempts that a sweep ended. A worker reads them each second, in one query of rows by their
keys.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from django.db.models import QuerySet
from django.db.models import Value as Constant

from foundation.database import statements
from gpus.models import Server
from gpus.protocol import DesiredState, Lease
from jobs.models import Attempt, Job, PushedResult

_CANCELLED, _PUSHED, _OFF, _OVER = "cancelled", "pushed", "off", "over"


@dataclass(frozen=True, slots=True)
class Changes:
    """cancelled: ids of jobs whose cancel was requested. pushed: ids of attempts. off: names of servers.
    over: ids of attempts whose end is committed, whoever wrote it."""

    cancelled: frozenset[str]
    pushed: frozenset[str]
    off: frozenset[str]
    over: frozenset[str]


def changes_for(leases: Iterable[Lease]) -> Changes:
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
