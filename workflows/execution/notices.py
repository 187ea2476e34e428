"""Notices that a run gives itself: it is due, even if the hint is lost or its process dies."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from django.db.models import Exists, OuterRef
from django.db.models.functions import Substr

from foundation.database.row_codec import new_row
from jobs.models import EndNotice
from workflows.domain.states import RunState
from workflows.models import Run, follower_of


def due_notice(run_id: str, now: datetime) -> EndNotice:
    """Return a notice of a run for itself, to be written with the change that makes it due. It ends no node;
    a step of the run deletes it."""
    return new_row(
        EndNotice, followed_by=follower_of(run_id), ended_id=run_id, state=RunState.RUNNING.value, at=now
    )


def delete_of_ended(run_ids: Iterable[str]) -> None:
    """Delete the notices of those of these runs that are not running: in one statement, because a restart may
    just have made one of them due again. The success of a retried job stays: it may be newer than the last
    look (`workflows.execution.retried`)."""
    names = [follower_of(run_id) for run_id in run_ids]
    place = len(follower_of("")) + 1
    running = Run.objects.filter(id=Substr(OuterRef("followed_by"), place), state=RunState.RUNNING.value)
    ended = EndNotice.objects.filter(~Exists(running), followed_by__in=names)
    ended.exclude(round__gt=1, state=RunState.COMPLETED.value).delete()
