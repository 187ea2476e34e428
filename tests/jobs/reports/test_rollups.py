"""Addable histograms and their percentiles."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from random import Random

import pytest

from jobs.reports.rollups import (
    BOUNDS_SECONDS,
    EndedEvent,
    Sums,
    counted,
    percentile,
    span_begin,
    sum_of_buckets,
    sum_up,
)

NOON = datetime(2026, 1, 1, 12, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("seconds", "bucket"),
    [
        (-3.0, 0),
        (0.0, 0),
        (0.05, 0),
        (0.051, 1),
        (86_400.0, len(BOUNDS_SECONDS) - 1),
        (86_401.0, len(BOUNDS_SECONDS)),
    ],
)
def test_a_bucket_includes_its_upper_bound(seconds: float, bucket: int) -> None:
    assert counted(seconds)[bucket] == sum(counted(seconds)) == 1


def test_no_value_is_an_empty_histogram() -> None:
    assert counted(None) == []
    assert sum_of_buckets([], counted(1.0)) == counted(1.0) == sum_of_buckets(counted(1.0), [])
    with pytest.raises(ValueError):
        sum_of_buckets([1, 2], counted(1.0))  # made with other bounds


@pytest.mark.parametrize("share", [0.05, 0.5, 0.95, 0.99])
def test_a_percentile_lies_in_the_bucket_of_the_true_one(share: float) -> None:
    random = Random(3)
    values = [random.lognormvariate(2, 1.5) for _ in range(2000)]
    counts: list[int] = []
    for value in values:
        counts = sum_of_buckets(counts, counted(value))
    true = sorted(values)[int(share * len(values)) - 1]
    found = percentile(counts, share)
    assert found is not None
    low = max((bound for bound in BOUNDS_SECONDS if bound < true), default=0.0)
    high = min(bound for bound in BOUNDS_SECONDS if bound >= true)
    assert low <= found <= high


def test_a_percentile_without_values_is_none_and_is_at_most_the_last_bound() -> None:
    assert percentile([], 0.5) is None
    assert percentile([0] * (len(BOUNDS_SECONDS) + 1), 0.5) is None
    assert percentile(counted(1e9), 0.5) == BOUNDS_SECONDS[-1]


def test_a_percentile_is_interpolated_linearly_in_its_bucket() -> None:
    counts = [0] * (len(BOUNDS_SECONDS) + 1)
    counts[BOUNDS_SECONDS.index(2.0)] = 4  # between 1.5 and 2 s
    assert percentile(counts, 0.5) == pytest.approx(1.75)
    assert percentile(counts, 1.0) == 2.0


def test_ends_are_summed_by_minute_model_and_tenant() -> None:
    ends = [
        EndedEvent(NOON + timedelta(seconds=5), "a", 1, "completed", 2.0, 1.0, 4.0),
        EndedEvent(NOON + timedelta(seconds=59), "a", 1, "failed", 1.0, 1.0, 9.0),
        EndedEvent(NOON + timedelta(seconds=59), "a", 1, None, 0.5),
        EndedEvent(NOON + timedelta(seconds=60), "a", 1, "cancelled"),
        EndedEvent(NOON, "a", 2, "completed", 3.0, 0.1, 3.0),
    ]
    assert sum_up(ends) == {
        (NOON, "a", 1): Sums(
            1,
            1,
            0,
            3.5,
            sum_of_buckets(counted(1.0), counted(1.0)),
            sum_of_buckets(counted(4.0), counted(9.0)),
        ),
        (NOON + timedelta(minutes=1), "a", 1): Sums(cancelled=1),
        (NOON, "a", 2): Sums(1, 0, 0, 3.0, counted(0.1), counted(3.0)),
    }


def test_spans_begin_at_multiples_of_their_length() -> None:
    at = datetime(2026, 1, 1, 13, 47, 12, 345, tzinfo=UTC)
    assert span_begin(at, 60) == datetime(2026, 1, 1, 13, 47, tzinfo=UTC)
    assert span_begin(at, 600) == datetime(2026, 1, 1, 13, 40, tzinfo=UTC)
    assert span_begin(at, 3600) == datetime(2026, 1, 1, 13, 0, tzinfo=UTC)
