"""Notices that a run gives itself: it is due, even if the hint is lost or its process dies."""

from __future__ import annotations

from datetime import datetime

from foundation.database.row_codec import new_row
from jobs.models import EndNotice
from workflows.domain.states import RunState
from workflows.models import follower_of


def due_notice(run_id: str, now: datetime) -> EndNotice:
    """Return a notice of a run for itself, to be written with the change that makes it due. It ends no node;
    a step of the run deletes it."""
    return new_row(
        EndNotice, followed_by=follower_of(run_id), ended_id=run_id, state=RunState.RUNNING.value, at=now
    )
