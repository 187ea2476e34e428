"""Jobs at fixed times."""

from __future__ import annotations

import itertools
from typing import Any

from django.utils import timezone

from foundation.ids import new_id
from jobs.models import Job, JobTag, Tenant

NOW = timezone.now()


_moments = itertools.count()


def make_job(tenant: Tenant, state: str = "queued", **fields: Any) -> Job:
    final = state in ("completed", "failed", "cancelled")
    tags = fields.pop("tags", [])
    created_at = fields.pop("created_at", NOW)
    job = Job.objects.create(
        id=new_id(created_at.timestamp() + next(_moments) / 1000),
        tenant=tenant,
        model=fields.pop("model", "zimg"),
        pool="zimg",
        payload={},
        state=state,
        tags=tags,
        place_us=1,
        created_at=created_at,
        finished_at=NOW if final else None,
        live_attempt="0" * 26 if state == "running" else None,
        **fields,
    )
    JobTag.objects.bulk_create(JobTag(job=job, tag=tag) for tag in tags)
    return job


def ids(answer: Any) -> list[str]:
    assert answer.status_code == 200, answer.content
    return [job["job_id"] for job in answer.json()["results"]]
