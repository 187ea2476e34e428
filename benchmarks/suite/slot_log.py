"""Evaluates a GPU server's log of the runs of one contender. Pure.

The window is from when a tenth of the jobs had begun (all processes are warm by then) to when the last one
began (after that slots are free because no job waits)."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from .figures import percentiles

WARM_UP_SHARE = 0.1
_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Run:
    """A run in the log. began, ended: monotonic seconds. job: its number. remote_id: the dispatcher's id of
    it."""

    job: int
    began: float
    ended: float
    slot: int
    remote_id: str = ""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Utilisation, gaps and correctness of a contender.

    gaps: how long a slot was free between two jobs, milliseconds. window_seconds: length of the window.
    wrong: jobs that were not run exactly once, or came to a full server; empty for a correct contender."""

    utilisation: float
    gaps: dict[str, Any]
    window_seconds: float
    jobs: int
    wrong: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        return {
            "utilisation": round(self.utilisation, 4),
            "gap_p50_ms": self.gaps["p50"],
            "gap_p99_ms": self.gaps["p99"],
            "window_seconds": round(self.window_seconds, 2),
            "jobs": self.jobs,
            "wrong": list(self.wrong),
        }


def evaluate(runs: Iterable[Run], *, slots: int, expected: Iterable[int], refused: int = 0) -> Verdict:
    """Return the verdict. refused: requests while every slot was busy. Raises ValueError for fewer jobs than
    twice the slots."""
    ordered = sorted(runs, key=lambda run: run.began)
    if len(ordered) < 2 * slots:
        raise ValueError(f"only {len(ordered)} runs on {slots} slots: nothing can be said of them")
    begin = ordered[max(slots, int(len(ordered) * WARM_UP_SHARE))].began
    end = ordered[-1].began
    if end <= begin:
        raise ValueError("all jobs began at one moment: nothing can be said of them")
    busy = sum(max(0.0, min(run.ended, end) - max(run.began, begin)) for run in ordered)
    return Verdict(
        utilisation=busy / (slots * (end - begin)),
        gaps=percentiles(gap * 1000 for gap in _gaps(ordered, begin, end)),
        window_seconds=end - begin,
        jobs=len(ordered),
        wrong=tuple(_wrongs(ordered, expected, refused)),
    )


def _gaps(runs: Sequence[Run], begin: float, end: float) -> Iterator[float]:
    by_slot: dict[int, list[Run]] = defaultdict(list)
    for run in runs:
        by_slot[run.slot].append(run)
    for own in by_slot.values():
        for one, following in pairwise(own):
            if one.ended >= begin and following.began <= end:
                yield following.began - one.ended


def _wrongs(runs: Sequence[Run], expected: Iterable[int], refused: int) -> Iterator[str]:
    counts = Counter(run.job for run in runs)
    wanted = set(expected)
    for what, jobs in (
        ("never run", wanted - counts.keys()),
        ("run more than once", {job for job, count in counts.items() if count > 1}),
        ("run that was not submitted", counts.keys() - wanted),
    ):
        if jobs:
            some = ", ".join(str(job) for job in sorted(jobs)[:_SHOWN])
            yield f"{len(jobs)} {what} ({some}{', …' if len(jobs) > _SHOWN else ''})"
    if refused:
        yield f"{refused} requests came to a full server"
