"""The verdict on the neighbour's observations."""

from __future__ import annotations

import pytest

from verification.hostile.measure import (
    FLOOR_SECONDS,
    Observations,
    Sample,
    limit_of,
    neighbour_findings,
    percentile,
    recovered_at,
)

RATE = 10.0


def samples(*took: float, since: float = 0.0, status: int = 202) -> list[Sample]:
    return [Sample(since + n / RATE, one, status) for n, one in enumerate(took)]


def wrongs(observations: Observations, limit: float = 0.25) -> list[str]:
    return neighbour_findings(observations, limit, ends_within=10.0, callbacks_within=10.0)


def test_a_percentile_is_a_sample_by_its_rank() -> None:
    observations = samples(*(n / 100 for n in range(1, 101)))
    assert percentile(observations, 0.5) == 0.5
    assert percentile(observations, 0.99) == 0.99
    assert percentile(samples(7.0), 0.99) == 7.0
    assert percentile([], 0.99) == 0.0


def test_the_limit_is_three_times_the_quiet_value_or_the_floor() -> None:
    assert limit_of(samples(0.01, 0.02)) == FLOOR_SECONDS
    assert limit_of(samples(0.2, 0.3)) == pytest.approx(0.9)
    assert limit_of(samples(0.01), floor=0.05) == 0.05


def test_a_quiet_neighbour_has_no_findings() -> None:
    ends = samples(0.1, 0.2, status=200)
    assert wrongs(Observations(samples(*[0.02] * 50), samples(0.01, status=200), ends, ends)) == []


@pytest.mark.parametrize(
    ("observations", "says"),
    [
        (Observations(), "no submit of the neighbour was answered"),
        (Observations(samples(*[0.02] * 50, 0.3)), "submit p99 was 0.30 s, the limit is 0.25 s"),
        (Observations(samples(0.1, status=503)), "1 of 1 submits of the neighbour failed (503: 1)"),
        (Observations(samples(0.1), samples(0.1, status=0)), "1 of 1 reads of the neighbour failed (0: 1)"),
        (
            Observations(samples(0.1), ends=samples(11.0, 1.0, status=200)),
            "1 of 2 jobs of the neighbour took longer than 10 s (the longest 11.0 s)",
        ),
        (
            Observations(samples(0.1), callbacks=samples(3.0, status=0)),
            "1 of 1 callbacks of the neighbour took longer than 10 s (the longest 3.0 s)",
        ),
    ],
)
def test_each_exceeded_limit_of_the_neighbour_is_a_finding(observations: Observations, says: str) -> None:
    (wrong,) = wrongs(observations)
    assert says in wrong


def test_the_recovery_ends_with_the_first_quick_second() -> None:
    slow = samples(0.02, 2.0, 2.0, 0.02, 2.0)
    assert recovered_at(slow, 0.0, 0.25, RATE) is None
    quick = samples(*[0.02] * 12, since=0.5)
    assert recovered_at([*quick, *slow], 0.0, 0.25, RATE) == pytest.approx(0.5)


def test_refusals_missing_answers_and_too_few_of_them_are_no_recovery() -> None:
    assert recovered_at(samples(*[0.02] * 12, status=503), 0.0, 0.25, RATE) is None
    assert recovered_at(samples(*[0.02] * 9), 0.0, 0.25, RATE) is None
    assert recovered_at([], 0.0, 0.25, RATE) is None
    sparse = [Sample(0.0, 0.02), Sample(1.0, 0.02), Sample(1.1, 0.02)]
    assert recovered_at(sparse, 0.0, 0.25, RATE) is None


def test_samples_before_the_end_of_the_attack_are_no_recovery() -> None:
    assert recovered_at(samples(*[0.02] * 30), 0.95, 0.25, RATE) == pytest.approx(1.0)
