"""The neighbour's observations in a span of time, and the limits for them. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

RATIO = 3.0
"""Limit of a submit's p99 under attack: this many times its quiet value …"""
FLOOR_SECONDS = 0.25
"""… or this, if it is more: on a machine with two cores a quiet p99 of 10 ms is a few unlucky wake-ups away
from 100 ms."""
STEADY_SECONDS = 1.0
"""The neighbour has recovered once its submits are quick for this time."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One request. at: Unix seconds when it was due. took: seconds from then. status: of the answer, 0 for
    none."""

    at: float
    took: float
    status: int = 202

    @property
    def is_good(self) -> bool:
        """True if the answer's status is 200, 202 or 204."""
        return self.status in (200, 202, 204)


@dataclass(slots=True)
class Observations:
    """The neighbour's requests in a span of time.

    submits, reads: requests. ends: from a job's acceptance to `done` in its event stream. callbacks: from its
    acceptance to its callback. `status` 0 in both: it never came."""

    submits: list[Sample] = field(default_factory=list)
    reads: list[Sample] = field(default_factory=list)
    ends: list[Sample] = field(default_factory=list)
    callbacks: list[Sample] = field(default_factory=list)

    @property
    def count(self) -> int:
        """Number of all samples."""
        return sum(map(len, (self.submits, self.reads, self.ends, self.callbacks)))

    def between(self, since: float, until: float) -> Observations:
        """Return the samples of a period. since, until: Unix times; the end is exclusive."""
        return Observations(
            *(
                [sample for sample in samples if since <= sample.at < until]
                for samples in (self.submits, self.reads, self.ends, self.callbacks)
            )
        )


def percentile(samples: Sequence[Sample], share: float) -> float:
    """Return a percentile of the durations, by nearest rank; 0 without samples."""
    if not samples:
        return 0.0
    ordered = sorted(sample.took for sample in samples)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def limit_of(quiet: Sequence[Sample], floor: float = FLOOR_SECONDS) -> float:
    """Return the limit of the p99 under attack."""
    return max(RATIO * percentile(quiet, 0.99), floor)


def recovered_at(submits: Iterable[Sample], since: float, limit: float, rate: float) -> float | None:
    """Return when, from `since` on, the first `STEADY_SECONDS` began in which every submit was quick; None:
    not yet.

    rate: submits a second; four in five of them must be there."""
    begin: float | None = None
    count = 0
    for sample in sorted(submits, key=lambda sample: sample.at):
        if sample.at < since:
            continue
        if not sample.is_good or sample.took > limit:
            begin, count = None, 0
            continue
        begin = sample.at if begin is None else begin
        count += 1
        if sample.at - begin >= STEADY_SECONDS - 1 / rate and count >= STEADY_SECONDS * rate * 0.8:
            return max(since, begin)
    return None


def neighbour_findings(
    observations: Observations, limit: float, *, ends_within: float, callbacks_within: float
) -> list[str]:
    """Return in words which limits the neighbour's observations exceed."""
    wrongs = []
    p99 = percentile(observations.submits, 0.99)
    if not observations.submits:
        wrongs.append("no submit of the neighbour was answered")
    elif p99 > limit:
        wrongs.append(f"the neighbour's submit p99 was {p99:.2f} s, the limit is {limit:.2f} s")
    for name, samples in (("submit", observations.submits), ("read", observations.reads)):
        bad = Counter(sample.status for sample in samples if not sample.is_good)
        if bad:
            counts = ", ".join(f"{status}: {times}" for status, times in sorted(bad.items()))
            wrongs.append(f"{sum(bad.values())} of {len(samples)} {name}s of the neighbour failed ({counts})")
    for name, samples, bound in (
        ("job", observations.ends, ends_within),
        ("callback", observations.callbacks, callbacks_within),
    ):
        late = [sample for sample in samples if sample.took > bound or not sample.is_good]
        if late:
            worst = max(sample.took for sample in late)
            wrongs.append(
                f"{len(late)} of {len(samples)} {name}s of the neighbour took longer than {bound:.0f} s "
                f"(the longest {worst:.1f} s)"
            )
    return wrongs


def figures(observations: Observations) -> Mapping[str, Any]:
    """Return the figures for the report, in milliseconds."""
    return {
        f"{name}_{which}_ms": round(value * 1000)
        for name, samples in (
            ("submit", observations.submits),
            ("read", observations.reads),
            ("job", observations.ends),
            ("callback", observations.callbacks),
        )
        for which, value in (("p50", percentile(samples, 0.5)), ("p99", percentile(samples, 0.99)))
    } | {"submits": len(observations.submits), "jobs_followed": len(observations.ends)}
