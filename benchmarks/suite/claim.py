"""Redis time of a release-and-claim over the size of the line: the rows of `benchmarks/claim.py` that the
goal speaks of, one dimension growing at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from benchmarks import claim
from dispatcher_project.proving.terminal import say

from .suite import Suite

CALLS = 5_000
GROWING: Mapping[str, Sequence[int]] = {
    "waiting": (10_000, 100_000, 1_000_000),
    "slots": (100, 1_000, 10_000),
    "tenants": (1, 100, 1_000, 10_000),
    "models": (16, 64, 200),
}
_TICKETS_PER_TENANT = 2


def measure(suite: Suite) -> dict[str, Any]:
    """--jobs: calls per row."""
    rows = []
    for grows, size in sizes():
        costs = claim.measure(size, suite.options.jobs or CALLS)
        row = {
            "grows": grows,
            **{name: value for name, value in asdict(size).items() if name in ("waiting", *GROWING)},
            **{f"{what}_us": round(costs[what], 1) for what in ("push", "claim", "release", "settled")},
            "client_p50_us": round(costs.client[0] * 1e6),
            "client_p99_us": round(costs.client[1] * 1e6),
        }
        rows.append(row)
        say(
            f"{size.waiting:>9,} waiting {size.slots:>6,} slots {size.tenants:>6,} tenants"
            f" {size.models:>4} models"
            f"  release and claim {row['release_us']} µs"
        )
    return {"rows": rows, **flatness(rows)}


def sizes() -> Iterator[tuple[str, claim.Size]]:
    """What grows (empty for the first one), and the row. Every tenant has somebody waiting."""
    base = claim.Size()
    yield "", base
    for field, values in GROWING.items():
        for value in values:
            waiting = max(base.waiting, value * _TICKETS_PER_TENANT) if field == "tenants" else base.waiting
            grown: dict[str, Any] = {"waiting": waiting, field: value}
            yield field, replace(base, **grown)


def flatness(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Of the release-and-claim: the dearest row, and the lowest and highest share of the first row's cost."""
    costs = [row["release_us"] for row in rows]
    return {
        "most_us": max(costs),
        "lowest_ratio": round(min(costs) / costs[0], 2),
        "highest_ratio": round(max(costs) / costs[0], 2),
    }
