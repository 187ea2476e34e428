"""The pages of docs/ that are made from code (`manage.py write_docs`): lifecycle.md from the state tables of
jobs/domain/states.py, model_options.md from the fields of `ModelConfig` and the runners, sweeps.md from the
registry of sweeps, settings.md from the settings; and the client's options of a submit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from inspect import getmodule
from pathlib import Path
from typing import Any

from dispatcher_project.cli.settings_page import settings_page
from dispatcher_project.cli.submit_options import client_module
from dispatcher_project.settings.dispatcher import DispatcherSettings
from gpus.api.bodies import schema_of
from gpus.registry.model_fields import all_options, defaults, help_of
from gpus.runners.registry import BUILT_IN
from jobs.domain.states import (
    ATTEMPT_MOVES,
    FINAL_JOB_STATES,
    JOB_MOVES,
    LIVE_ATTEMPT_STATES,
    AttemptState,
    JobState,
)
from jobs.sweeps.registry import Sweeps

DOCS = Path(__file__).resolve().parents[2] / "docs"


def pages() -> Mapping[Path, Callable[[], str]]:
    """What makes each of them."""
    return {
        DOCS / "lifecycle.md": lifecycle_page,
        DOCS / "model_options.md": model_options_page,
        DOCS / "sweeps.md": sweeps_page,
        DOCS / "settings.md": settings_page,
        DOCS.parent / "dispatcher_client/submit_options.py": client_module,
    }


def sweeps_page() -> str:
    """Every sweep: its period without settings, and the first paragraph of its module's docstring."""
    lines = [
        "# Sweeps",
        "",
        "<!-- Made from jobs/sweeps/ by `python3 manage.py write_docs`; don't edit. -->",
        "",
        "Each looks for one symptom and repairs it; one process runs those that are due, every second.",
        "What breaks without them is in [failures](failures.md).",
        "",
        "| Sweep | Every | In a thread of its own | What it looks for |",
        "| --- | --- | --- | --- |",
    ]
    for name, entry in Sweeps().entries(DispatcherSettings()).items():
        symptom = (getmodule(entry.sweep).__doc__ or "").partition("\n\n")[0]  # type: ignore[union-attr]
        said = " ".join(symptom.split())
        lines.append(f"| `{name}` | {entry.period_seconds:g} s | {'yes' if entry.slow else 'no'} | {said} |")
    return "\n".join([*lines, ""])


def model_options_page() -> str:
    """Every option of a model, and the runners that read it; of the built-in runners only."""
    preset = defaults()
    lines = [
        "# Model options",
        "",
        "<!-- Made from gpus/models/model_config.py and the runners by `python3 manage.py write_docs`; don't"
        " edit. -->",
        "",
        "`PUT` and `PATCH /api/v1/admin/model-configs/{model}`, `POST /api/v1/admin/register` and the",
        "model's admin page take them. Unset is `null` in JSON, and an empty field on the page.",
        "",
        "| Option | Value | Default | |",
        "| --- | --- | --- | --- |",
    ]
    for name, field in all_options().items():
        lines.append(f"| `{name}` | {_values(schema_of(field))} | {_shown(preset[name])} | {help_of(name)} |")
    lines += [
        "",
        "## Runners",
        "",
        "A model's `model_type` names the runner that speaks its servers' [protocol](gpu_protocol.md).",
        "Packages may bring [more](gpu_protocol.md#a-protocol-of-your-own).",
        "",
        "| `model_type` | Servers | Polled | Results may be pushed | Options that it reads |",
        "| --- | --- | --- | --- | --- |",
    ]
    for runner in BUILT_IN:
        read = ", ".join(f"`{name}`" for name in runner.options) or "–"
        polled, pushed = ("yes" if flag else "no" for flag in (runner.is_polled, runner.is_pushed))
        lines.append(f"| `{runner.name}` | {runner.summary} | {polled} | {pushed} | {read} |")
    return "\n".join([*lines, ""])


def _values(schema: Mapping[str, Any]) -> str:
    if "enum" in schema:
        return ", ".join(f"`{choice}`" for choice in schema["enum"])
    kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    said = " or ".join(kind for kind in kinds if kind != "null")
    limits = (
        ("exclusiveMinimum", "more than"),
        ("minimum", "from"),
        ("maximum", "up to"),
    )
    if "maxLength" in schema:
        return f"{said} of up to {schema['maxLength']} characters"
    return ", ".join([said, *(f"{words} {schema[key]:,}" for key, words in limits if key in schema)])


def _shown(value: Any) -> str:
    return "unset" if value is None else f"`{str(value).lower() if isinstance(value, bool) else value}`"


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
