"""What the neighbour saw in a stretch of time, and what it may have seen. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

RATIO = 3.0
"""A submit's p99 under attack may be so many times its quiet value …"""
FLOOR_SECONDS = 0.25
"""… or this, if that is more: on a machine with two cores a quiet p99 of 10 ms is a few unlucky wake-ups away
from 100 ms."""
STEADY_SECONDS = 1.0
"""Recovered is a neighbour whose submits are quick again for so long."""


@dataclass(frozen=True, slots=True)
class Sample:
    """at: Unix seconds when it was due. took: seconds from then. status: of the answer, 0 for none."""

    at: float
    took: float
    status: int = 202

    @property
    def is_good(self) -> bool:
        return self.status in (200, 202, 204)


@dataclass(slots=True)
class Sightings:
    """submits, reads: requests. ends: from a job's acceptance to `done` in its event stream. callbacks: from
    its acceptance to its callback; `status` 0 in both: it never came."""

    submits: list[Sample] = field(default_factory=list)
    reads: list[Sample] = field(default_factory=list)
    ends: list[Sample] = field(default_factory=list)
    callbacks: list[Sample] = field(default_factory=list)

    @property
    def count(self) -> int:
        return sum(map(len, (self.submits, self.reads, self.ends, self.callbacks)))

    def between(self, since: float, until: float) -> Sightings:
        return Sightings(
            *(
                [sample for sample in samples if since <= sample.at < until]
                for samples in (self.submits, self.reads, self.ends, self.callbacks)
            )
        )


def percentile(samples: Sequence[Sample], share: float) -> float:
    """Of what they took, by nearest rank; 0 for none."""
    if not samples:
        return 0.0
    ordered = sorted(sample.took for sample in samples)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def limit_of(quiet: Sequence[Sample], floor: float = FLOOR_SECONDS) -> float:
    return max(RATIO * percentile(quiet, 0.99), floor)


def recovered_at(submits: Iterable[Sample], since: float, limit: float, rate: float) -> float | None:
    """When, from `since` on, the first `STEADY_SECONDS` began in which every submit was quick.

    rate: submits a second; four in five of them must be there. None: not yet.
    """
    begin: float | None = None
    seen = 0
    for sample in sorted(submits, key=lambda sample: sample.at):
        if sample.at < since:
            continue
        if not sample.is_good or sample.took > limit:
            begin, seen = None, 0
            continue
        begin = sample.at if begin is None else begin
        seen += 1
        if sample.at - begin >= STEADY_SECONDS - 1 / rate and seen >= STEADY_SECONDS * rate * 0.8:
            return max(since, begin)
    return None


def neighbour_wrongs(
    seen: Sightings, limit: float, *, ends_within: float, callbacks_within: float
) -> list[str]:
    """What another tenant suffered, in words."""
    wrongs = []
    p99 = percentile(seen.submits, 0.99)
    if not seen.submits:
        wrongs.append("no submit of the neighbour was answered")
    elif p99 > limit:
        wrongs.append(f"the neighbour's submit p99 was {p99:.2f} s, the limit is {limit:.2f} s")
    for name, samples in (("submit", seen.submits), ("read", seen.reads)):
        bad = Counter(sample.status for sample in samples if not sample.is_good)
        if bad:
            counts = ", ".join(f"{status}: {times}" for status, times in sorted(bad.items()))
            wrongs.append(f"{sum(bad.values())} of {len(samples)} {name}s of the neighbour failed ({counts})")
    for name, samples, bound in (
        ("job", seen.ends, ends_within),
        ("callback", seen.callbacks, callbacks_within),
    ):
        late = [sample for sample in samples if sample.took > bound or not sample.is_good]
        if late:
            worst = max(sample.took for sample in late)
            wrongs.append(
                f"{len(late)} of {len(samples)} {name}s of the neighbour took longer than {bound:.0f} s "
                f"(the longest {worst:.1f} s)"
            )
    return wrongs


def figures(seen: Sightings) -> Mapping[str, Any]:
    """For the report, in milliseconds."""
    return {
        f"{name}_{which}_ms": round(value * 1000)
        for name, samples in (
            ("submit", seen.submits),
            ("read", seen.reads),
            ("job", seen.ends),
            ("callback", seen.callbacks),
        )
        for which, value in (("p50", percentile(samples, 0.5)), ("p99", percentile(samples, 0.99)))
    } | {"submits": len(seen.submits), "jobs_followed": len(seen.ends)}
