"""Redis time of a release-and-claim by queue size: the rows of `benchmarks/claim.py` with a goal, in which
one dimension grows at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from benchmarks import claim, claim_rows
from verification.proving.terminal import say

from .suite import Suite

CALLS = 5_000


def measure(suite: Suite) -> dict[str, Any]:
    """Run the benchmark. --jobs: calls per row."""
    rows = []
    say(claim_rows.HEADS)
    for grows, size in sizes():
        rows.append(claim.row_of(grows, size, claim.measure(size, suite.options.jobs or CALLS)))
        say(claim_rows.line_of(rows[-1]))
    return {"rows": rows, **flatness(rows)}


def sizes() -> Iterator[tuple[str, claim.Size]]:
    """Yield the first row, and those in which one dimension grows."""
    base, *others = claim.default_sizes()
    yield base
    yield from ((grows, size) for grows, size in others if grows)


def flatness(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the most expensive row of the release-and-claim, and the lowest and highest ratio to the first
    row's cost."""
    costs = [row["release_us"] for row in rows]
    return {
        "most_us": max(costs),
        "lowest_ratio": round(min(costs) / costs[0], 2),
        "highest_ratio": round(max(costs) / costs[0], 2),
    }
