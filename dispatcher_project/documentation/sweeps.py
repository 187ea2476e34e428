"""docs/reference/sweeps.md: every sweep, from the registry and its module's first paragraph."""

from __future__ import annotations

from inspect import getmodule

from dispatcher_project.settings.dispatcher import DispatcherSettings
from jobs.sweeps.registry import Sweeps


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
