"""The outbox: what a finished job tells its client, as a row of the finishing transaction."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from foundation import json_text
from foundation.database.row_codec import new_row
from foundation.ids import new_id
from jobs.domain.disclosure import shown_error
from jobs.domain.states import JobState
from jobs.models import Callback, Job

from .guard import receiver_of


def callback_for(job: Job, *, now: datetime) -> Callback | None:
    """The unsaved message for a job that carries its final values; None if nobody asked to be told.

    Due at once. Its id is the `webhook-id`, the same in every try; its body never changes again.
    """
    if not job.callback_url:
        return None
    return new_row(
        Callback,
        id=f"msg_{new_id(now.timestamp())}",
        job_id=job.id,
        round=job.round,
        tenant_id=job.tenant_id,
        receiver=receiver_of(job.callback_url),
        url=job.callback_url,
        body=_body(job),
        state=Callback.State.PENDING,
        next_at=now,
        created_at=now,
    )


def _body(job: Job) -> str:
    """Canonical JSON, in ASCII: half a surrogate pair in a result must not stop the job from ending."""
    told: dict[str, Any] = {
        "job_id": job.id,
        "status": str(job.state),
        "model": job.model,
        "tags": job.tags,
        "metadata": job.metadata,
        "finished_at": job.finished_at.isoformat() if job.finished_at else None,
    }
    if job.state == JobState.COMPLETED:
        told["result"] = job.result
    else:
        told["error"] = shown_error(job.error_code or str(job.state), job.error_message, in_full=False)
    return json_text.dumps(told, sort_keys=True)
