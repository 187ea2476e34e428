"""Which jobs are meant, in the operators' words."""

from __future__ import annotations

from dataclasses import dataclass, fields
from datetime import datetime

from django.db.models import Q, QuerySet

from foundation.ids import lowest_id
from jobs.domain.states import JobState
from jobs.models import DEAD_LETTER, Attempt, Job, JobTag, Tenant

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
