"""docs/reference/events.md: every event type of a job's history, from the table of moves and
`jobs.domain.event_types`."""

from __future__ import annotations

from jobs.domain.event_types import BESIDE_MOVES
from jobs.domain.states import JOB_MOVES


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
        "without an id, ends the stream of a finished job. [Runs](workflows.md#events-and-callbacks)",
        "have a stream of the same form. Tenants do not see `remote_id`, `evidence` and",
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
    lines += [
        "",
        "## Log lines",
        "",
        "A `log` event carries `lines`, each with `at` (ISO 8601, by the worker's clock), `stream`",
        "(`stdout`, `stderr`, or `log` for `ctx.log`), `text`, and where known `level` (debug, info,",
        "warning, error). A line with `left_out` stands for so many lines. Terminal colours are removed,",
        "other control characters are escaped. The traceback that ended a run is its last lines, on",
        "`stderr`.",
        "",
        "A tenant's key gets the lines of the stream `log`, or what `DISPATCHER_TENANT_LOGS` says (`all`,",
        "`none`); `lines_hidden` counts the others. A staff session needs the permission",
        "`jobs.view_payload`.",
        "",
        "| Limit | Setting | Beyond it |",
        "| --- | --- | --- |",
        "| characters of a job's first attempt; 1/n for the nth | `DISPATCHER_LOG_CHARS_PER_JOB` |"
        " the first three quarters and the last quarter stay |",
        "| characters of a line | `DISPATCHER_LOG_LINE_CHARS` | cut, with `…` at its end |",
        "| lines of a run per second, ten times as many in one go | `DISPATCHER_LOG_LINES_PER_SECOND` |"
        " counted: `… 12 lines left out` |",
        "| characters of all runs of a worker per second, four times as many in one go |"
        " `DISPATCHER_LOG_CHARS_PER_SECOND` | counted |",
        "",
        "The first 4000 characters of each run do not count for the rate of its worker.",
        "A line counts 64 characters besides its text. The events are written by the group commit, half a",
        "second to 5 s apart, and once more at the run's end; the run never waits for them. They are removed",
        "with their job. `GET /api/v1/queue/jobs/{id}/logs` returns the lines without the events.",
    ]
    return "\n".join([*lines, ""])
