"""A process that grows is told from one that warms up."""

from __future__ import annotations

import os

from dispatcher_project.web.memory import resident_bytes
from verification.proving.memory import Samples, growing, slope

MB = 1024 * 1024


def series(*sizes_mb: float, seconds: float = 300.0) -> list[tuple[float, int]]:
    step = seconds / (len(sizes_mb) - 1)
    return [(n * step, int(size * MB)) for n, size in enumerate(sizes_mb)]


def test_a_process_that_grows_on_and_on_is_found():
    found = slope("web", 1, series(*(100 + 2 * n for n in range(60))))
    assert found.flat is False
    assert found.bytes_per_hour > 100 * MB
    assert [wrong.kind for wrong in growing([found])] == ["memory"]


def test_one_that_warms_up_and_stays_is_flat():
    found = slope("web", 1, series(*([60.0] * 5 + [100.0] * 55)))
    assert (found.flat, list(growing([found]))) == (True, [])


def test_one_whose_cache_is_full_in_the_end_is_flat():
    """Flower's, of tasks: so large a trial is as long as it takes to fill it."""
    found = slope("flower", 1, series(*([80.0] * 12 + [80 + n for n in range(24)] + [104.0] * 24)))
    assert found.last_bytes - found.first_bytes > 12 * MB
    assert found.flat is True


def test_one_that_grows_by_little_more_than_may_be_is_found():
    found = slope("web", 1, series(*([80.0] * 12 + [80 + 0.42 * n for n in range(48)])))
    assert found.flat is False


def test_a_short_life_tells_nothing():
    assert slope("web", 1, series(*(100 + 9 * n for n in range(20)), seconds=90.0)).flat is None


def test_a_long_series_is_thinned(monkeypatch):
    monkeypatch.setattr(Samples, "MAX", 50)
    samples = Samples()
    for second in range(1000):
        samples.take({"me": os.getpid()}, float(second))
    (found,) = samples.slopes()
    assert found.seconds > 800
    assert found.flat is True


def test_after_the_end_nothing_is_weighed():
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
