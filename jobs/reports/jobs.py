"""Queries of jobs: filters for operators, lists, counts and single jobs. Every query for a reader starts with
`jobs_visible_to`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any

from django.db.models import Count, Min, Prefetch, Q, QuerySet
from django.db.models.functions import Coalesce

from foundation.ids import lowest_id
from foundation.ttl_cache import AdaptiveTtlValue
from gpus.models import Pause
from jobs.domain.access import Principal
from jobs.domain.states import FINAL_JOB_STATES, JobState
from jobs.models import ACTIONABLE, CLIENT_ERROR, DEAD_LETTER, Attempt, Job, JobTag, Tenant

ATTEMPTS_SHOWN = 50
"""Newest attempts shown with a job; a busy server can refuse a job thousands of times."""
SHOWN_ATTEMPTS = "shown_attempts"
"""Attribute of a `Job` for attempts that were prefetched with it."""
UNFINISHED = tuple(state for state in JobState if state not in FINAL_JOB_STATES)
CLOCKS_DIFFER_SECONDS = 3600.0
"""Tolerance: the time in an id may be of another process's clock than `created_at`."""


def created_between(after: datetime | None, before: datetime | None) -> Q:
    """Return a condition for jobs created in [after, before): first by their ids, which are indexed and begin
    with the time, then exactly by `created_at`."""
    chosen = Q()
    if after is not None:
        lowest = lowest_id(max(after.timestamp() - CLOCKS_DIFFER_SECONDS, 0.0))
        chosen &= Q(id__gte=lowest, created_at__gte=after)
    if before is not None:
        highest = lowest_id(max(before.timestamp() + CLOCKS_DIFFER_SECONDS, 0.0))
        chosen &= Q(id__lt=highest, created_at__lt=before)
    return chosen


@dataclass(frozen=True, slots=True)
class JobFilter:
    """Filter of jobs; None: any. tenant: name. fingerprint: of the failure. created_before: exclusive.
    server: a server on which an attempt of the job ran.

    client_errors: True: only jobs that failed by their client's input. Otherwise dead letters are without
    these, unless error_code or fingerprint names them."""

    model: str | None = None
    tenant: str | None = None
    state: JobState | None = None
    error_code: str | None = None
    fingerprint: str | None = None
    tag: str | None = None
    created_after: datetime | None = None
    created_before: datetime | None = None
    server: str | None = None
    client_errors: bool | None = None

    def rows(self) -> QuerySet[Job]:
        """Return the matching jobs, unordered, without payloads and results."""
        plain = {
            "model": self.model,
            "tenant__name": self.tenant,
            "state": self.state.value if self.state else None,
            "error_code": self.error_code,
            "error_fingerprint": self.fingerprint,
        }
        rows = Job.objects.filter(**{name: value for name, value in plain.items() if value is not None})
        rows = rows.filter(created_between(self.created_after, self.created_before))
        if self.tag is not None:
            rows = rows.filter(id__in=JobTag.objects.filter(tag=self.tag).values("job_id"))
        if self.server is not None:
            rows = rows.filter(id__in=Attempt.objects.filter(server=self.server).values("job_id"))
        if self.client_errors:
            rows = rows.filter(CLIENT_ERROR)
        return rows.defer("payload", "result").order_by()

    def dead_letters(self) -> QuerySet[Job]:
        """Return the matching jobs that are dead letters."""
        is_named = self.client_errors or self.error_code is not None or self.fingerprint is not None
        return self.rows().filter(DEAD_LETTER if is_named else ACTIONABLE)

    def tenant_exists(self) -> bool:
        """Return True if the named tenant exists or none is named."""
        return self.tenant is None or Tenant.objects.filter(name=self.tenant).exists()

    def as_json(self) -> dict[str, str]:
        """Return the fields that are set, for the audit entry."""
        named = {one.name: getattr(self, one.name) for one in fields(self)}
        return {
            name: value.isoformat() if isinstance(value, datetime) else str(value)
            for name, value in named.items()
            if value not in (None, False)
        }


def jobs_visible_to(principal: Principal) -> QuerySet[Job]:
    """Return all jobs for an operator, otherwise those of the principal's tenant."""
    if principal.is_operator:
        return Job.objects.all()
    if principal.tenant_id is None:
        return Job.objects.none()
    return Job.objects.filter(tenant=principal.tenant_id)


def find_job(
    principal: Principal, job_id: str, *, attempts_before: int | None = None, with_payload: bool = False
) -> Job | None:
    """Return the job with its last attempts; None if it does not exist or is not visible. attempts_before:
    only attempts with a lower number. with_payload: read the payload too."""
    rows = jobs_visible_to(principal).prefetch_related(_attempts(attempts_before))
    return rows.defer(*(() if with_payload else ("payload",))).filter(id=job_id).first()


def list_jobs(
    principal: Principal,
    *,
    status: str | None = None,
    model: str | None = None,
    tag: str | None = None,
    created_after: datetime | None = None,
    created_before: datetime | None = None,
) -> QuerySet[Job]:
    """Return visible jobs, newest first, without payloads and results, which may have megabytes. None:
    any."""
    rows = jobs_visible_to(principal).defer("payload", "result").prefetch_related(_attempts())
    if status is not None:
        rows = rows.filter(state=status)
    if model is not None:
        rows = rows.filter(model=model)
    if tag is not None:
        rows = rows.filter(id__in=JobTag.objects.filter(tag=tag).values("job_id"))
    return rows.filter(created_between(created_after, created_before)).order_by("-id")


def dead_letters(chosen: JobFilter) -> QuerySet[Job]:
    """Return dead letters (FAILED, not dismissed) with their last attempts, newest first."""
    return chosen.dead_letters().prefetch_related(_attempts()).order_by("-id")


def named(pauses: Sequence[Pause]) -> list[tuple[Pause, str]]:
    """Return each pause with its display name; pauses store tenants by id."""
    ids = [one.name for one in pauses if one.kind == Pause.Kind.TENANT and one.name.isdecimal()]
    tenants = {str(pk): name for pk, name in Tenant.objects.filter(pk__in=ids).values_list("pk", "name")}
    return [
        (one, tenants.get(one.name, one.name) if one.kind == Pause.Kind.TENANT else one.name)
        for one in pauses
    ]


@dataclass(frozen=True, slots=True)
class Waiting:
    """One tenant's unfinished jobs of one model: counts by state. oldest_queued_at: earliest start (`run_at`,
    else time of submit) of the oldest queued job."""

    model: str
    tenant_id: int
    scheduled: int
    queued: int
    running: int
    retrying: int
    cancelling: int
    oldest_queued_at: datetime | None


def waiting_by_model_and_tenant(
    principal: Principal, of_all: AdaptiveTtlValue[list[Waiting]]
) -> list[Waiting]:
    """Return the counts of unfinished jobs. For operators all of them are read, so with many jobs the result
    can be some seconds old. of_all: the process's cache for operators."""
    if principal.is_operator:
        return of_all.get(lambda: _waiting(principal))
    return _waiting(principal)


def _waiting(principal: Principal) -> list[Waiting]:
    queued = Q(state=JobState.QUEUED)
    rows = (
        jobs_visible_to(principal)
        .filter(state__in=[state.value for state in UNFINISHED])
        .order_by()
        .values("model", "tenant_id")
        .annotate(
            scheduled=_count(JobState.SCHEDULED),
            queued=_count(JobState.QUEUED),
            running=_count(JobState.RUNNING),
            retrying=_count(JobState.RETRYING),
            cancelling=_count(JobState.CANCELLING),
            oldest_queued_at=Min(Coalesce("run_at", "created_at"), filter=queued),
        )
    )
    return [Waiting(**row) for row in rows]


def _count(state: JobState) -> Count:
    return Count("id", filter=Q(state=state))


def _attempts(before: int | None = None) -> Prefetch[Any]:
    return Prefetch("attempts", queryset=last_attempts(before), to_attr=SHOWN_ATTEMPTS)


def last_attempts(before: int | None = None, *, of: Job | None = None) -> QuerySet[Attempt]:
    """Return the last `ATTEMPTS_SHOWN` attempts, newest first. before: only attempts with a lower number. of:
    only of this job."""
    rows = Attempt.objects.all() if of is None else Attempt.objects.filter(job=of)
    if before is not None:
        rows = rows.filter(number__lt=before)
    return rows.order_by("-number")[:ATTEMPTS_SHOWN]
