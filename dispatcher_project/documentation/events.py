"""docs/reference/events.md: every event type of a job's history, from the state table and the list here."""

from __future__ import annotations

from jobs.domain.states import JOB_MOVES, JobState

BESIDE_MOVES = {
    "accepted": (
        "`attempt`, `remote_id`",
        "The GPU server took the run and named it; from here on it is polled.",
    ),
    "adopted": ("`attempt`, `epoch`", "Another worker continues the run: its own worker was lost."),
    "cancel_requested": ("", "A cancel was requested while the job runs; its end follows."),
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


def event_types() -> set[str]:
    """Return every type that a job's history may hold."""
    return {move.event for move in JOB_MOVES} | {JobState.SCHEDULED.value} | set(BESIDE_MOVES)


def events_page() -> str:
    """Return the whole page, Markdown."""
    lines = [
        "# Events",
        "",
        "<!-- Made from jobs/domain/states.py and the event types by `python3 manage.py write_docs`;"
        " don't edit. -->",
        "",
        "A job's history is a list of events, numbered from 1 (`seq`) in the order of their commits and",
        "written in the transaction of what they report. `GET /api/v1/queue/jobs/{id}/events` streams them",
        "as Server-Sent Events: the event's type is the SSE type, its number the SSE id. `event: done`,",
        "without an id, ends the stream of a finished job. Tenants do not see `remote_id`, `evidence` and",
        "the texts of GPU servers",
        "([what a tenant can read](../explanation/security.md#what-a-tenant-can-read)).",
        "",
        "## Changes of state",
        "",
        "Each carries `status`, the new state; one about an attempt also its number as `attempt`.",
        "",
        "| Event | New state | When |",
        "| --- | --- | --- |",
        "| `queued` | queued | The job was submitted. |",
        "| `scheduled` | scheduled | The job was submitted with a later `run_at`. |",
        *(
            f"| `{move.event}` | {move.target} | From {move.source}: {move.why}. |"
            for move in sorted(JOB_MOVES, key=lambda move: move.event)
        ),
        "",
        "## Within a state",
        "",
        "| Event | Fields | When |",
        "| --- | --- | --- |",
        *(f"| `{kind}` | {shown or '–'} | {text} |" for kind, (shown, text) in BESIDE_MOVES.items()),
    ]
    return "\n".join([*lines, ""])
