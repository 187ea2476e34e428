"""Detects processes whose memory grows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import linear_regression, median
from typing import Any

from dispatcher_project.web.memory import resident_bytes
from verification.proving.judge import Finding

WARM_UP_SECONDS = 60.0
SHORTEST_SECONDS = 120.0
"""A process that lived shorter than this after its warm-up is not judged."""
GROWTH_BYTES = 12 * 1024 * 1024
GROWTH_SHARE = 0.12
END_PART = 6
"""Even growth gains a quarter of its total within the last third, from one half of it to the other. Less than
a sixth is a cache that has filled up."""
_MEGABYTE = 1024 * 1024

Sample = tuple[float, int]
"""Monotonic seconds, bytes."""


@dataclass(frozen=True, slots=True)
class Slope:
    """The memory of one process, without its warm-up. flat: None if it lived too short to tell."""

    name: str
    pid: int
    seconds: float
    first_bytes: int
    last_bytes: int
    bytes_per_hour: float
    flat: bool | None

    def as_json(self) -> dict[str, Any]:
        return {
            "process": self.name,
            "pid": self.pid,
            "seconds": round(self.seconds),
            "first_mb": round(self.first_bytes / _MEGABYTE, 1),
            "last_mb": round(self.last_bytes / _MEGABYTE, 1),
            "mb_per_hour": round(self.bytes_per_hour / _MEGABYTE, 1),
            "flat": self.flat,
        }


def slope(name: str, pid: int, samples: Sequence[Sample]) -> Slope:
    """Flat: the last third is hardly larger than the first one, or growth has stopped."""
    since = samples[0][0] + WARM_UP_SECONDS
    warm = [sample for sample in samples if sample[0] >= since]
    if len(warm) < 6 or warm[-1][0] - warm[0][0] < SHORTEST_SECONDS:
        return Slope(name, pid, samples[-1][0] - samples[0][0], samples[0][1], samples[-1][1], 0.0, None)
    third = len(warm) // 3
    first = int(median(size for _, size in warm[:third]))
    last = int(median(size for _, size in warm[-third:]))
    line = linear_regression([at for at, _ in warm], [float(size) for _, size in warm])
    much = max(GROWTH_BYTES, GROWTH_SHARE * first)
    flat = last - first <= much or _gain(warm[-third:]) <= much / END_PART
    return Slope(name, pid, warm[-1][0] - warm[0][0], first, last, line.slope * 3600, flat)


def _gain(samples: Sequence[Sample]) -> float:
    """Return the bytes gained between the first and the second half."""
    half = len(samples) // 2
    return median(size for _, size in samples[half:]) - median(size for _, size in samples[:half])


def memory_findings(slopes: Sequence[Slope]) -> Iterator[Finding]:
    """Yield a finding for each process that grows."""
    for one in slopes:
        if one.flat is False:
            sizes = f"{one.first_bytes / _MEGABYTE:.0f} to {one.last_bytes / _MEGABYTE:.0f} MB"
            yield Finding("memory", f"{one.name} ({one.pid}) grew from {sizes} in {one.seconds:.0f} s")


class Samples:
    """Memory samples, bounded: a series of more than `most` is thinned, and continues more slowly."""

    def __init__(self, most: int = 1200) -> None:
        self._most = most
        self._series: dict[tuple[str, int], list[Sample]] = {}
        self._pauses: dict[tuple[str, int], float] = {}
        self._is_over = False

    def end(self) -> None:
        """End all series: sizes under another kind of load are not comparable."""
        self._is_over = True

    def take(self, pids: Mapping[str, int], now: float) -> None:
        """Record the memory of these processes."""
        if self._is_over:
            return
        for key in pids.items():
            series, pause = self._series.setdefault(key, []), self._pauses.get(key, 0.0)
            if series and now - series[-1][0] < pause:
                continue
            size = resident_bytes(key[1])
            if size:
                series.append((now, size))
            if len(series) > self._most:
                del series[1::2]
                self._pauses[key] = (series[-1][0] - series[0][0]) / len(series)

    def slopes(self) -> list[Slope]:
        """Return the memory growth of each process with samples."""
        return [slope(name, pid, samples) for (name, pid), samples in self._series.items() if samples]
