"""The only place that changes the state of a job or an attempt: compare-and-set, and the event beside it.

Every function runs inside its caller's transaction, returns whether it won, and is idempotent, because a
COMMIT whose reply was lost is repeated.
"""

from jobs.transitions.unit_of_work import Touched, flush_changes, unit_of_work

from .attempts import (
    End,
    Start,
    StartOutcome,
    end_attempt,
    lose_stray,
    note_progress,
    note_remote_id,
    quarantine_slot,
    restore_end,
    start_attempt,
    take_over,
)
from .waiting import (
    WAITING,
    Ended,
    change_place,
    dismiss,
    end_cancelled,
    end_waiting,
    finish_cancelling,
    new_jobs,
    queue_retry,
    queue_scheduled,
    request_cancel,
    requeue_failed,
)

__all__ = [
    "WAITING",
    "End",
    "Ended",
    "Start",
    "StartOutcome",
    "Touched",
    "change_place",
    "dismiss",
    "end_attempt",
    "end_cancelled",
    "end_waiting",
    "finish_cancelling",
    "flush_changes",
    "lose_stray",
    "new_jobs",
    "note_progress",
    "note_remote_id",
    "quarantine_slot",
    "queue_retry",
    "queue_scheduled",
    "request_cancel",
    "requeue_failed",
    "restore_end",
    "start_attempt",
    "take_over",
    "unit_of_work",
]
