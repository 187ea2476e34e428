"""Redis time of a release-and-claim over the size of the line: the rows of `benchmarks/claim.py` that the
goal speaks of, one dimension growing at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from benchmarks import claim, claim_rows
from verification.proving.terminal import say

from .suite import Suite

CALLS = 5_000


def measure(suite: Suite) -> dict[str, Any]:
    """--jobs: calls per row."""
    rows = []
    say(claim_rows.HEADS)
    for grows, size in sizes():
        rows.append(claim.row_of(grows, size, claim.measure(size, suite.options.jobs or CALLS)))
        say(claim_rows.line_of(rows[-1]))
    return {"rows": rows, **flatness(rows)}


def sizes() -> Iterator[tuple[str, claim.Size]]:
    """The first row, and those in which one dimension grows."""
    base, *others = claim.default_sizes()
    yield base
    yield from ((grows, size) for grows, size in others if grows)


def flatness(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Of the release-and-claim: the dearest row, and the lowest and highest share of the first row's cost."""
    costs = [row["release_us"] for row in rows]
    return {
        "most_us": max(costs),
        "lowest_ratio": round(min(costs) / costs[0], 2),
        "highest_ratio": round(max(costs) / costs[0], 2),
    }
