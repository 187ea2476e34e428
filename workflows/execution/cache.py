"""Results that nodes take instead of running a job: by tenant, model, its configuration and the payload.

A row names the job; the result stays in the job's row alone, so it goes with the job's retention and erasure.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings

from artifacts.models import Artifact
from artifacts.refs import BadRef, TooManyRefs, find_refs
from foundation.database.row_codec import new_row
from foundation.database.statements import Read, value
from foundation.json_text import canonical_json
from gpus.protocol import ModelSpec
from jobs.domain.states import JobState
from jobs.models import Job
from jobs.operations.erase import is_erased
from workflows.models import CachedOutput

_fresh = Read(
    lambda: CachedOutput.objects.filter(
        key=value(CachedOutput, "key"), expires_at__gt=value(CachedOutput, "expires_at")
    ).values_list("job_id", flat=True)
)
_result = Read(
    lambda: Job.objects.filter(id=value(Job, "id"), state=JobState.COMPLETED.value).values_list(
        "result", "tenant_id"
    )
)


@dataclass(frozen=True, slots=True)
class Hit:
    """A result that may be taken. job_id: of the job that made it. artifacts: that it refers to."""

    job_id: str
    output: Any
    artifacts: Collection[str]


def key_of(tenant_id: int, spec: ModelSpec, payload: Any) -> str:
    """Return the key of what a node asks for. spec: a changed configuration is another key."""
    content = f"{tenant_id}\n{spec!r}\n{canonical_json(payload)}"
    return hashlib.sha256(content.encode()).hexdigest()


def find(key: str, tenant_id: int, now: datetime) -> Hit | None:
    """Return the result under a key, if it is fresh, whole and not erased."""
    job_id = _fresh.first(key=key, expires_at=now)
    if job_id is None:
        return None
    result, owner = _result.first(id=job_id) or (None, None)
    if owner != tenant_id or is_erased(result) or (artifacts := _own_artifacts(result, owner)) is None:
        return None
    return Hit(job_id, result, artifacts)


def entry(key: str, tenant_id: int, job_id: str, seconds: float, now: datetime) -> CachedOutput:
    """Return the row that offers a job's result for so many seconds."""
    return new_row(
        CachedOutput,
        key=key,
        tenant_id=tenant_id,
        job_id=job_id,
        expires_at=now + timedelta(seconds=seconds),
    )


def _own_artifacts(result: Any, tenant_id: int) -> Collection[str] | None:
    """Return the artifacts that a result refers to; None if one is not stored, or not the tenant's: a use
    would keep it, and a model may answer with any id."""
    try:
        ids = list(find_refs(result, settings.DISPATCHER.max_artifact_refs))
    except (BadRef, TooManyRefs):
        return None
    stored = Artifact.objects.filter(id__in=ids, tenant_id=tenant_id, state=Artifact.State.STORED)
    return ids if not ids or stored.count() == len(ids) else None
