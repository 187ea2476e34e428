"""Statistics of samples. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any


def percentile(samples: Iterable[float], share: float) -> float:
    """Return the smallest sample that at least `share` of them do not exceed. Raises ValueError without
    samples."""
    ordered = sorted(samples)
    if not ordered:
        raise ValueError("no samples")
    rank = -(-len(ordered) * share // 1)  # rounded up
    return ordered[min(len(ordered), max(1, int(rank))) - 1]


def percentiles(samples: Iterable[float], digits: int = 2) -> dict[str, Any]:
    """Return p50, p99, the largest and the number of samples; all None without samples."""
    found = list(samples)
    if not found:
        return {"p50": None, "p99": None, "max": None, "count": 0}
    return {
        "p50": round(percentile(found, 0.5), digits),
        "p99": round(percentile(found, 0.99), digits),
        "max": round(max(found), digits),
        "count": len(found),
    }


def medians(rounds: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the median of each number that is in every round."""
    if not rounds:
        return {}
    names = [name for name, value in rounds[0].items() if _is_number(value)]
    return {
        name: round(median(one[name] for one in rounds), 4)
        for name in names
        if all(_is_number(one.get(name)) for one in rounds)
    }


def ratio(ours: float | None, other: float | None) -> float | None:
    """Return the ratio; None if a value is missing or the divisor is 0."""
    return None if ours is None or not other else round(ours / other, 3)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
