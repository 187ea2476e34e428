"""docs/reference/lifecycle.md: the state tables of jobs/domain/states.py, with Mermaid diagrams."""

from __future__ import annotations

from jobs.domain.states import (
    ATTEMPT_MOVES,
    FINAL_JOB_STATES,
    JOB_MOVES,
    LIVE_ATTEMPT_STATES,
    AttemptState,
    JobState,
)


def lifecycle_page() -> str:
    """The whole page, Markdown with Mermaid diagrams."""
    return "\n".join(
        [
            "# The life of a job",
            "",
            "<!-- Made from jobs/domain/states.py by `python3 manage.py write_docs`; don't edit. -->",
            "",
            "The state says where a job is; `error_code` says why it ended there. Every arrow is a",
            "compare-and-set in the database together with the event named beside it.",
            "",
            *_job_diagram(),
            "",
            "| From | To | Event | Because |",
            "| --- | --- | --- | --- |",
            *(f"| {move.source} | {move.target} | `{move.event}` | {move.why} |" for move in JOB_MOVES),
            "",
            *_ways_of_jobs(),
            "",
            "## The life of an attempt",
            "",
            f"One try of a job on one slot. A live one ({_list(LIVE_ATTEMPT_STATES, AttemptState)}) holds",
            "the slot: partial UNIQUE indexes allow one per slot and one per job.",
            "",
            *_attempt_diagram(),
            "",
        ]
    )


def _job_diagram() -> list[str]:
    arrows = [f"    {move.source} --> {move.target}: {move.event}" for move in JOB_MOVES]
    ends = [f"    {state} --> [*]" for state in JobState if state in FINAL_JOB_STATES]
    begins = ["    [*] --> queued: submitted", "    [*] --> scheduled: submitted for later"]
    return ["```mermaid", "stateDiagram-v2", *begins, *arrows, *ends, "```"]


def _ways_of_jobs() -> list[str]:
    """For each state, from where one enters it and to where one leaves it."""
    lines = ["| State | Entered from | Left to |", "| --- | --- | --- |"]
    for state in JobState:
        entered = {move.source for move in JOB_MOVES if move.target is state}
        left = {move.target for move in JOB_MOVES if move.source is state}
        ways = ["submit"] if state in (JobState.QUEUED, JobState.SCHEDULED) else []
        ways += [_list(entered, JobState)] if entered else []
        final = " (final)" if state in FINAL_JOB_STATES else ""
        lines.append(f"| {state}{final} | {', '.join(ways)} | {_list(left, JobState) or '–'} |")
    return lines


def _attempt_diagram() -> list[str]:
    arrows = [
        f"    {source} --> {target}"
        for source in AttemptState
        for target in AttemptState
        if target in ATTEMPT_MOVES.get(source, ())
    ]
    ends = [f"    {state} --> [*]" for state in AttemptState if state not in LIVE_ATTEMPT_STATES]
    return ["```mermaid", "stateDiagram-v2", "    [*] --> sent", *arrows, *ends, "```"]


def _list(states: frozenset[AttemptState] | set[JobState], order: type[AttemptState] | type[JobState]) -> str:
    return ", ".join(state.value for state in order if state in states)
