"""Others went in a job's place although it was its turn, or will. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from jobs.explain.reasons import Reason
from jobs.explain.snapshot import Snapshot


def passed_over(now: Snapshot) -> Iterator[Reason]:
    """As long as that may happen again."""
    line = now.outlook
    if not 0 < line.passed_over < line.most_passed_over or line.patience_seconds <= 0:
        return
    times = "once" if line.passed_over == 1 else f"{line.passed_over} times"
    yield Reason(
        "passed_over",
        f"A slot that got free took another job in its place {times}: one whose model is loaded there, or one"
        " that may run on the server that this one avoids.",
        f"A slot that has its model loaded gets free; or that happened {line.most_passed_over} times, or its"
        " patience is over.",
        {
            "passed_over": line.passed_over,
            "at_most": line.most_passed_over,
            "patience_seconds": round(line.patience_seconds, 1),
        },
    )
