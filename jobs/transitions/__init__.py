"""The only place that moves a job or an attempt: compare-and-set, the event beside it, nothing else.

Every function runs inside its caller's transaction, says by its return value whether it won, and may be
repeated (a COMMIT whose reply was lost is applied again): the second time changes nothing.
"""

from jobs.transitions.unit_of_work import Touched, unit_of_work, write_out

from .attempts import (
    End,
    Start,
    StartOutcome,
    end_attempt,
    lose_stray,
    note_progress,
    note_remote_id,
    quarantine_slot,
    rewrite_end,
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
    open_round,
    queue_again,
    queue_at_its_time,
    request_cancel,
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
    "lose_stray",
    "new_jobs",
    "note_progress",
    "note_remote_id",
    "open_round",
    "quarantine_slot",
    "queue_again",
    "queue_at_its_time",
    "request_cancel",
    "rewrite_end",
    "start_attempt",
    "take_over",
    "unit_of_work",
    "write_out",
]
