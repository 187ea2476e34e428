"""Payload and result of a run are released at its end: a time slice may have hundreds of runs, with megabytes
each."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

from gpus.runners.base import Finished, RunRequest
from jobs.execution.group_commit import LARGE_BYTES
from jobs.execution.row_prefetch import FRESH_SECONDS
from tests.jobs.execution.by_hand import Hands
from tests.jobs.execution.prefetch_by_hand import hands

__all__ = ["hands"]

pytestmark = pytest.mark.django_db(transaction=True)


class Brought(dict[str, Any]):
    """A result that supports weak references, to see whether it is still referenced."""


@pytest.fixture
def no_collector() -> Iterator[None]:
    """What only the collector could find is not let go of: it looks seldom at what has lived for a while."""
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize("ahead", [True, False])
def test_memory_holds_only_the_running_and_the_prefetched_job(
    hands: Hands, no_collector: None, ahead: bool
) -> None:
    hands.worker.prefetch.short_seconds *= ahead
    # small ones are kept for a while (jobs/execution/group_commit.py)
    results, runs = [Brought(n="1" * 2 * LARGE_BYTES) for _ in range(7)], set[weakref.ref[Any]]()
    brought = [weakref.ref(result) for result in results]
    hands.gpu.answers, hands.gpu.seconds = [Finished(result) for result in results], 0.1
    results.clear()
    kept_results, kept_runs = list[int](), list[int]()

    def look(run: RunRequest) -> None:
        hands.writer.commit()
        runs.update(weakref.ref(one) for _, one in hands.worker.runs.all())
        over = len(brought) - len(hands.gpu.answers)
        kept_results.append(sum(one() is not None for one in brought[:over]))
        kept_runs.append(sum(one() is not None for one in runs))

    hands.gpu.on_start, hands.writer.at_once = look, False
    for _ in brought:
        hands.submit()
    hands.worker.work("m")
    assert len(runs) == len(brought) == len(kept_runs)
    assert set(kept_results) == {0}
    assert max(kept_runs) <= 2
    assert [one() for one in runs] == [None] * len(runs)


def test_prefetched_rows_of_a_quiet_pool_are_dropped(hands: Hands) -> None:
    for _ in range(3):
        hands.submit()
    ahead = hands.worker.row_prefetch
    ahead.request("main", "m", slots=2, ran_seconds=0.02)
    ahead.read_requested()
    hands.worker.watch()
    assert len(ahead._pools["m"].rows) == 3
    hands.clock.move(FRESH_SECONDS + 0.1)
    hands.worker.watch()
    assert len(ahead._pools["m"].rows) == 0
