"""Submits in many short windows, alone and beside loads, in turns: ratios of percentiles and their bounds.

What changes slowly on the machine meets all kinds of window alike. A load runs in its own windows only; its
clients are stopped (SIGSTOP) in the others.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext

from benchmarks.suite.figures import percentile

Window = Sequence[float]
"""Milliseconds of each submit."""
Windows = Mapping[str, Sequence[Window]]
"""Windows of each kind, in the order of turns."""
Load = Callable[[], AbstractContextManager[None]]
"""Returns a block inside which the load runs."""
ALONE = "alone"
RESAMPLES = 1000
_SETTLE_SECONDS = 0.5
"""After a load was stopped or continued, before samples count."""


def in_turns(
    loads: Mapping[str, Load],
    submit: Callable[[], object],
    *,
    turns: int,
    seconds: float,
    rate: float,
    seed: int = 0,
    settle_seconds: float = _SETTLE_SECONDS,
) -> Iterator[Windows]:
    """Yield the windows measured so far after each turn, which has one of each kind in random order.

    loads: by kind; ALONE is a kind without one. seconds: of a window.
    rate: submits per second, below saturation, so that each window has as many. settle_seconds: before each.
    """
    kinds: dict[str, Load] = {ALONE: nullcontext, **loads}
    found: dict[str, list[Window]] = {kind: [] for kind in kinds}
    order = random.Random(seed)
    for _ in range(turns):
        for kind in order.sample(sorted(kinds), len(kinds)):
            with kinds[kind]():
                time.sleep(settle_seconds)
                found[kind].append(_window(submit, seconds, rate))
        yield found


def _window(submit: Callable[[], object], seconds: float, rate: float) -> Window:
    took: list[float] = []
    due = time.monotonic()
    until = due + seconds
    while due < until:
        time.sleep(max(0.0, due - time.monotonic()))
        began = time.monotonic()
        submit()
        ended = time.monotonic()
        took.append((ended - began) * 1000)
        due = max(due + 1 / rate, ended)
    return took


def ratio(tested: Sequence[Window], base: Sequence[Window], share: float) -> float:
    """Return the ratio of the percentiles of all samples."""
    return percentile(_pooled(tested), share) / percentile(_pooled(base), share)


def interval(
    tested: Sequence[Window], base: Sequence[Window], share: float, *, seed: int = 0
) -> tuple[float, float]:
    """Return the bounds between which the ratio is in 95 of 100 resamples of the turns (bootstrap). The
    samples of a window depend on each other, so whole turns are drawn."""
    draw, turns = random.Random(seed), range(len(base))
    found = []
    for _ in range(RESAMPLES):
        drawn = draw.choices(turns, k=len(turns))
        found.append(ratio([tested[turn] for turn in drawn], [base[turn] for turn in drawn], share))
    return percentile(found, 0.025), percentile(found, 0.975)


def report(found: Windows, against: Sequence[tuple[str, str]]) -> Iterator[str]:
    """Yield lines with the percentiles of each kind, and with ratios. against: pairs of kinds."""
    for kind, windows in found.items():
        samples = _pooled(windows)
        p50, p99 = (percentile(samples, share) for share in (0.5, 0.99))
        yield f"{kind:<24} p50 {p50:7.2f} ms   p99 {p99:7.2f} ms   ({len(samples)} in {len(windows)} windows)"
    for tested, base in against:
        if tested in found and base in found:
            parts = []
            for name, share in (("p50", 0.5), ("p99", 0.99)):
                low, high = interval(found[tested], found[base], share)
                middle = ratio(found[tested], found[base], share)
                parts.append(f"{name} {middle:5.2f} [{low:.2f}, {high:.2f}]")
            yield f"{f'{tested} to {base}':<24} {'   '.join(parts)}"


def _pooled(windows: Sequence[Window]) -> list[float]:
    return sorted(sample for window in windows for sample in window)
