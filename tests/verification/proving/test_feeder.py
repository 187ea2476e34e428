"""The queue is kept at its requested length, and no longer than there are jobs."""

from __future__ import annotations

from typing import Any

from tests.support.waiting import wait_for
from verification.proving.feeder import Feeder


class Load:
    """Accepts every order at once."""

    def __init__(self) -> None:
        self.orders: list[dict[str, Any]] = []
        self.released = 0

    def ask(self, **order: Any) -> dict[str, Any]:
        self.orders.append(order)
        self.released += order.get("count", 0)
        return {"released": self.released, "accepted": self.released, "given_up": 0}


def feeder(load: Load, waiting: Any, *, limit: int = 1000) -> Feeder:
    return Feeder(load, waiting, limit)  # type: ignore[arg-type]


def test_missing_jobs_are_released_up_to_the_allowance():
    load = Load()
    fed = feeder(load, lambda: load.released)
    fed.level, fed.allowance = 10, 4
    fed.feed(0.0)
    assert (load.released, fed.allowance) == (4, 0)
    fed.allowance = 100
    fed.feed(0.0)
    fed.feed(0.0)
    assert load.released == 10


def test_the_feeder_ends_with_the_last_job():
    load = Load()
    fed = feeder(load, lambda: 0, limit=7)
    fed.level = fed.allowance = 100
    fed.trickles = True
    for second in range(5):
        fed.feed(float(second))
    assert load.released == 7


def test_one_job_a_second_trickles_in_if_requested():
    load = Load()
    fed = feeder(load, lambda: 5)
    fed.trickles = True
    for tenth in range(31):
        fed.feed(100.0 + tenth / 10)
    assert load.released == 4
    fed.trickles = False
    fed.feed(200.0)
    assert load.released == 4


def test_without_a_count_of_waiting_jobs_few_are_released():
    load = Load()
    fed = feeder(load, lambda: None)
    fed.level = fed.allowance = 10
    fed.feed(0.0)
    assert load.released == 1


def test_many_jobs_are_sent_in_batches():
    load = Load()
    fed = feeder(load, lambda: 0)
    fed.release(100)
    fed.release(1, model="prove-video", seconds=6.0)
    assert [order["batch"] for order in load.orders] == [True, False]
    assert load.orders[1]["seconds"] == 6.0


def test_the_feeders_thread_releases_jobs_and_ends():
    load = Load()
    ended: list[bool] = []
    fed = Feeder(load, lambda: load.released, 1000, lambda: ended.append(True))  # type: ignore[arg-type]
    fed.level = fed.allowance = 3
    fed.start()
    wait_for(lambda: load.released == 3)
    fed.stop()
    assert ended == [True]
