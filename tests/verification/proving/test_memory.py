"""A process that grows is distinguished from one that warms up."""

from __future__ import annotations

import os

from dispatcher_project.web.memory import resident_bytes
from verification.proving.memory import Samples, memory_findings, slope

MB = 1024 * 1024


def series(*sizes_mb: float, seconds: float = 300.0) -> list[tuple[float, int]]:
    step = seconds / (len(sizes_mb) - 1)
    return [(n * step, int(size * MB)) for n, size in enumerate(sizes_mb)]


def test_a_process_that_grows_on_and_on_is_found():
    found = slope("web", 1, series(*(100 + 2 * n for n in range(60))))
    assert found.flat is False
    assert found.bytes_per_hour > 100 * MB
    assert [wrong.kind for wrong in memory_findings([found])] == ["memory"]


def test_a_process_that_warms_up_and_stays_is_flat():
    found = slope("web", 1, series(*([60.0] * 5 + [100.0] * 55)))
    assert (found.flat, list(memory_findings([found]))) == (True, [])


def test_a_process_whose_cache_has_filled_up_is_flat():
    """Flower's cache of tasks: a trial that large lasts as long as it takes to fill it."""
    found = slope("flower", 1, series(*([80.0] * 12 + [80 + n for n in range(24)] + [104.0] * 24)))
    assert found.last_bytes - found.first_bytes > 12 * MB
    assert found.flat is True


def test_a_process_that_grows_slightly_beyond_the_limit_is_found():
    found = slope("web", 1, series(*([80.0] * 12 + [80 + 0.42 * n for n in range(48)])))
    assert found.flat is False


def test_a_process_that_lived_too_short_is_not_judged():
    assert slope("web", 1, series(*(100 + 9 * n for n in range(20)), seconds=90.0)).flat is None


def test_a_long_series_is_thinned():
    samples = Samples(most=50)
    for second in range(1000):
        samples.take({"me": os.getpid()}, float(second))
    (found,) = samples.slopes()
    assert found.seconds > 800
    assert found.flat is True


def test_samples_after_the_end_are_not_compared():
    samples = Samples()
    for second in range(100):
        samples.take({"me": os.getpid()}, float(second))
        if second == 10:
            samples.end()
    (found,) = samples.slopes()
    assert found.flat is None


def test_a_process_that_is_gone_has_no_size():
    assert resident_bytes(os.getpid()) > MB
    assert resident_bytes(2**22 + 1) == 0
