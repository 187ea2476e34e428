"""The callback of a run's round: a row of the transaction that ends it, sent like those of jobs."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.db.models import QuerySet

from artifacts.refs import ref
from jobs.callbacks.message import callback_of, subject_message_id
from jobs.models import Callback
from workflows.domain.advance import RunEnd
from workflows.domain.states import RunState
from workflows.execution.long_outputs import url_of
from workflows.models import Run, Version, follower_of


def callback_for(run: Run, end: RunEnd, output_artifact: str | None, *, now: datetime) -> Callback | None:
    """Make the outbox row of a run that ends; None if no callback was requested. output_artifact: that
    has its output."""
    if not run.callback_url:
        return None
    version = Version.objects.values("workflow__name", "number").get(id=run.version_id)
    body: dict[str, Any] = {
        "run_id": run.id,
        "workflow": version["workflow__name"],
        "version": version["number"],
        "status": end.state.value,
        "round": run.round,
        "tags": run.tags,
        "finished_at": now.isoformat(),
    }
    if end.state is RunState.COMPLETED:
        body["output"] = end.output if output_artifact is None else ref(output_artifact)
        body["output_url"] = url_of(output_artifact)
    else:
        body["error"] = {"code": end.code, "message": end.detail, "node": end.node or None}
    return callback_of(
        follower_of(run.id), run.round, url=run.callback_url, body=body, tenant_id=run.tenant_id, now=now
    )


def callbacks_of(run: Run) -> QuerySet[Callback]:
    """Select the callbacks of all rounds of a run."""
    ids = [subject_message_id(follower_of(run.id), number) for number in range(1, run.round + 1)]
    return Callback.objects.filter(id__in=ids)
