"""The rows of `benchmarks.claim`: output, flatness, and goals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

COSTS = ("claim", "release")
MAX_US, APART, MAX_CLIENT_US, MAX_BYTES = 30.0, 0.3, 1000.0, 200.0

HEADS = (
    f"{'waiting':>9} {'slots':>7} {'tenants':>8} {'models':>7} {'order':>5} │ {'push':>6} {'claim':>6} "
    f"{'release+claim':>14} {'confirm':>8} {'client p50':>11} {'p99':>6} {'bytes':>6}"
)


def line_of(row: Mapping[str, Any]) -> str:
    return (
        f"{row['waiting']:>9,} {row['slots']:>7,} {row['tenants']:>8,} {row['models']:>7} "
        f"{row['algorithm']:>5} │ {row['push_us']:>6} {row['claim_us']:>6} {row['release_us']:>14} "
        f"{row['confirm_ends_us']:>8} {row['client_p50_us']:>11} {row['client_p99_us']:>6} "
        f"{row['bytes'] or '–':>6}"
        + (" limited" if row["limited"] else "")
        + (f" {row['warm']} warm" if row["warm"] else "")
    )


def flatness(rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """Return by dimension the cost of the most expensive row over that of the cheapest, the first row
    included."""
    found = {}
    for grows in dict.fromkeys(row["grows"] for row in rows if row["grows"]):
        of_it = [rows[0], *(row for row in rows if row["grows"] == grows)]
        found[grows] = {
            what: round(max(row[f"{what}_us"] for row in of_it) / min(row[f"{what}_us"] for row in of_it), 2)
            for what in COSTS
        }
    return found


def goals(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return {text, measured, reached} of each goal."""

    def at_most(text: str, limit: float, values: Sequence[float]) -> dict[str, Any]:
        return {"text": text, "measured": max(values), "reached": max(values) <= limit}

    flat = [row for row in rows if row["grows"] or row is rows[0]]
    apart = max(abs(row[f"{what}_us"] / rows[0][f"{what}_us"] - 1) for row in flat for what in COSTS)
    sizes = [row["bytes"] for row in rows if row["bytes"]]
    return [
        *(at_most(f"{what}: {MAX_US:g} µs", MAX_US, [row[f"{what}_us"] for row in rows]) for what in COSTS),
        dict(text="flat: within 30 % of the first row", measured=round(apart, 2), reached=apart <= APART),
        at_most("client p99: 1,000 µs", MAX_CLIENT_US, [row["client_p99_us"] for row in rows]),
        *([at_most("bytes per waiting job: 200", MAX_BYTES, sizes)] if sizes else []),
    ]
