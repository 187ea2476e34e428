"""Statistics of samples."""

from __future__ import annotations

import pytest

from benchmarks.suite.figures import medians, percentile, percentiles, ratio


@pytest.mark.parametrize(("share", "found"), [(0.5, 50), (0.99, 99), (1.0, 100), (0.001, 1)])
def test_a_percentile_is_a_sample_that_its_share_does_not_exceed(share, found):
    assert percentile(range(100, 0, -1), share) == found


def test_one_slow_sample_in_fifty_is_in_the_p99():
    assert percentiles([1.0] * 49 + [70.0]) == {"p50": 1.0, "p99": 70.0, "max": 70.0, "count": 50}


def test_without_samples_there_are_no_figures():
    assert percentiles([])["p99"] is None
    with pytest.raises(ValueError, match="no samples"):
        percentile([], 0.5)


def test_medians_are_of_numbers_in_all_rounds():
    rounds = [
        {"utilisation": 0.9, "late": 1, "wrong": [], "sound": True},
        {"utilisation": 0.2, "late": None, "wrong": [], "sound": True},
        {"utilisation": 0.8, "late": 3, "wrong": [], "sound": True},
    ]
    assert medians(rounds) == {"utilisation": 0.8}
    assert medians([]) == {}


def test_a_ratio_needs_both():
    assert (ratio(3.0, 2.0), ratio(None, 2.0), ratio(3.0, None), ratio(3.0, 0.0)) == (1.5, None, None, None)
