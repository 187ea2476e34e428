"""The types of the events in a job's history. docs/reference/events.md is made of them."""

from __future__ import annotations

from jobs.domain.states import JOB_MOVES, JobState

BESIDE_MOVES: dict[str, tuple[str, str]] = {
    "accepted": (
        "`attempt`, `remote_id`",
        "The GPU server took the run and named it; from here on it is polled.",
    ),
    "adopted": ("`attempt`, `epoch`", "Another worker continues the run: its own worker was lost."),
    "cancel_requested": ("", "A cancel was requested while the job runs; its end follows."),
    "log": (
        "`attempt`, `part`, `lines`, `lines_hidden`",
        "Log lines of the run, see [below](#log-lines).",
    ),
    "moved_in_line": (
        "`priority`, `before`",
        "An operator changed the job's priority or moved it to the front.",
    ),
    "partial": (
        "`attempt`, `part`, `output`, `left_out`",
        "A piece of the output, as texts to append or other JSON values.",
    ),
    "progress": (
        "`attempt`, `part`, `progress`, `text`",
        "Progress of the run, from 0 to 1, and a line about it where the run reports one.",
    ),
}
"""Type: (its fields besides `job_id`, `seq`, `type` and `at`, its meaning)."""

EVENT_TYPES = frozenset({move.event for move in JOB_MOVES} | {JobState.SCHEDULED.value} | set(BESIDE_MOVES))
"""Every type that a job's history may hold."""
