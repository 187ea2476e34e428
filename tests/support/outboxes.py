"""Due callbacks of tenants."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from jobs.callbacks.message import callback_for, renew_secret
from jobs.domain.states import JobState
from jobs.models import Callback, Job, Tenant


def tenant_named(name: str) -> Tenant:
    tenant = Tenant.objects.create(name=name)
    renew_secret(tenant)
    return tenant


def outbox(tenant: Tenant, urls: Sequence[str], *, at: datetime | None = None) -> list[str]:
    """One finished job and its message for each URL, due now."""
    now = at or datetime.now(UTC)
    jobs = [
        Job(
            tenant=tenant,
            model="m",
            pool="m",
            payload={},
            callback_url=url,
            state=JobState.COMPLETED,
            result={},
            place_us=1,
            created_at=now,
            finished_at=now,
        )
        for url in urls
    ]
    Job.objects.bulk_create(jobs)
    rows = [row for job in jobs if (row := callback_for(job, now=now)) is not None]
    Callback.objects.bulk_create(rows)
    return [row.id for row in rows]
