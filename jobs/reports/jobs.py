"""Reads of jobs: which are meant, in the operators' words, and lists, counts and single jobs. Everything that
shows a job to somebody begins with `jobs_visible_to`."""

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
from jobs.models import DEAD_LETTER, Attempt, Job, JobTag, Tenant

ATTEMPTS_SHOWN = 50
"""A server that refuses a job all day long makes an attempt of each time."""
SHOWN_ATTEMPTS = "shown_attempts"
"""Where those are kept that were read with their job."""
UNFINISHED = tuple(state for state in JobState if state not in FINAL_JOB_STATES)


CLOCKS_DIFFER_SECONDS = 3600.0
"""An id may be of another process' clock than the row."""


def created_between(after: datetime | None, before: datetime | None) -> Q:
    """Jobs of this time, before not included: by their ids, which begin with the time and have an index, and
    exactly by the row."""
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
    """What is None does not matter. tenant: its name. fingerprint: of the failure. created_before: not
    included. server: one that an attempt of the job ran on."""

    model: str | None = None
    tenant: str | None = None
    state: JobState | None = None
    error_code: str | None = None
    fingerprint: str | None = None
    tag: str | None = None
    created_after: datetime | None = None
    created_before: datetime | None = None
    server: str | None = None

    def rows(self) -> QuerySet[Job]:
        """Without order, payloads and results."""
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
        return rows.defer("payload", "result").order_by()

    def dead_letters(self) -> QuerySet[Job]:
        """Those of them that failed and that nobody dismissed."""
        return self.rows().filter(DEAD_LETTER)

    def tenant_exists(self) -> bool:
        """Also if none is named."""
        return self.tenant is None or Tenant.objects.filter(name=self.tenant).exists()

    def as_json(self) -> dict[str, str]:
        """What matters, for the records."""
        named = {one.name: getattr(self, one.name) for one in fields(self)}
        return {
            name: value.isoformat() if isinstance(value, datetime) else str(value)
            for name, value in named.items()
            if value is not None
        }


def jobs_visible_to(principal: Principal) -> QuerySet[Job]:
    """An operator sees every job, anybody else those of the own tenant."""
    if principal.is_operator:
        return Job.objects.all()
    if principal.tenant_id is None:
        return Job.objects.none()
    return Job.objects.filter(tenant=principal.tenant_id)


def find_job(principal: Principal, job_id: str, *, attempts_before: int | None = None) -> Job | None:
    """The job with its last attempts, or None if there is none that this principal may see. attempts_before:
    a number; those with lower ones."""
    rows = jobs_visible_to(principal).defer("payload").prefetch_related(_attempts(attempts_before))
    return rows.filter(id=job_id).first()


def list_jobs(
    principal: Principal,
    *,
    status: str | None = None,
    model: str | None = None,
    tag: str | None = None,
    created_after: datetime | None = None,
    created_before: datetime | None = None,
) -> QuerySet[Job]:
    """Newest first, without payloads and results (either may be megabytes)."""
    rows = jobs_visible_to(principal).defer("payload", "result").prefetch_related(_attempts())
    if status is not None:
        rows = rows.filter(state=status)
    if model is not None:
        rows = rows.filter(model=model)
    if tag is not None:
        rows = rows.filter(id__in=JobTag.objects.filter(tag=tag).values("job_id"))
    return rows.filter(created_between(created_after, created_before)).order_by("-id")


def dead_letters(chosen: JobFilter) -> QuerySet[Job]:
    """FAILED jobs that nobody dismissed: what an operator may retry. Newest first."""
    return chosen.dead_letters().prefetch_related(_attempts()).order_by("-id")


def named(pauses: Sequence[Pause]) -> list[tuple[Pause, str]]:
    """Each with the name that people know: the lease layer knows tenants by number."""
    ids = [one.name for one in pauses if one.kind == Pause.Kind.TENANT and one.name.isdecimal()]
    tenants = {str(pk): name for pk, name in Tenant.objects.filter(pk__in=ids).values_list("pk", "name")}
    return [
        (one, tenants.get(one.name, one.name) if one.kind == Pause.Kind.TENANT else one.name)
        for one in pauses
    ]


@dataclass(frozen=True, slots=True)
class Waiting:
    """What one tenant has of one model: counts by state, and since when the oldest queued one
    may start."""

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
    """Counts of unfinished jobs. An operator's read a row of each: with many they may be some seconds old, as
    `of_all` keeps them for the process."""
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
    """The newest `ATTEMPTS_SHOWN`, newest first; of those with a lower number than `before`."""
    rows = Attempt.objects.all() if of is None else Attempt.objects.filter(job=of)
    if before is not None:
        rows = rows.filter(number__lt=before)
    return rows.order_by("-number")[:ATTEMPTS_SHOWN]
