"""A process that dies with several runs in it: no run pays for another, and none is lost for free for
ever."""

from __future__ import annotations

import dataclasses

import pytest

from gpu_host.local.orders import Order
from gpu_host.local.running import KEPT_SUSPECTS, Suspects
from gpus.errors import Interrupted, ProcessDied
from jobs.domain.retry import Ending
from tests.support.local_bench import Bench, Going
from tests.support.waiting import wait_for


def crash_together(bench: Bench) -> tuple[Order, Order]:
    """A culprit and a bystander, after the first crash, which ended both."""
    gate, beside, culprits = bench.path(), bench.path(), bench.path()
    bystander = bench.begin(bench.order("deaf", {"here": str(beside), "until": str(bench.path())}))
    wait_for(beside.exists)
    culprit = bench.begin(bench.order("deaf", {"here": str(culprits), "until": str(gate), "crash": True}))
    wait_for(culprits.exists)
    gate.touch()
    for one in (culprit, bystander):
        with pytest.raises(Interrupted, match=r"SIGSEGV.*alone") as raised:
            one.end()
        error = raised.value
        assert (error.counts, error.suspect, error.process_died) == (False, False, False)
        assert Ending(error).uncertain, "a job that may run only once has begun"
    return culprit.order, bystander.order


def again(order: Order, number: int) -> Order:
    return dataclasses.replace(order, attempt=f"{order.attempt}-{number}")


def test_a_crash_is_paid_by_the_one_that_crashes_alone(bench: Bench):
    culprit, bystander = crash_together(bench)
    for number in range(2):
        with pytest.raises(ProcessDied):
            Going(bench.gpu, again(culprit, number)).end()
    well = {"here": str(bench.path()), "until": __file__}
    assert bench.begin(dataclasses.replace(again(bystander, 1), payload=well)).end()


def test_a_suspect_runs_alone_until_it_ended_by_itself(bench: Bench):
    _, bystander = crash_together(bench)
    gate, here, beside = bench.path(), bench.path(), bench.path()
    alone = bench.begin(
        dataclasses.replace(again(bystander, 1), payload={"here": str(here), "until": str(gate)})
    )
    wait_for(here.exists)
    waits = bench.begin(bench.order("deaf", {"here": str(beside), "until": str(gate)}))
    wait_for(lambda: len(bench.gpu._queue.waiting) == 1)
    assert bench.gpu._queue.next_step(waits.order) is None
    assert not beside.exists()
    gate.touch()
    assert alone.end() == waits.end()
    assert bystander.job not in bench.gpu._table.suspects


def test_a_suspect_waits_until_it_is_alone_and_no_run_overtakes_it(bench: Bench):
    _, bystander = crash_together(bench)
    gate, here = bench.path(), bench.path()
    first = bench.begin(bench.order("deaf", {"here": str(here), "until": str(gate)}))
    wait_for(here.exists)
    suspect = bench.begin(
        dataclasses.replace(again(bystander, 1), payload={"here": str(bench.path()), "until": str(gate)})
    )
    wait_for(lambda: len(bench.gpu._queue.waiting) == 1)
    assert bench.gpu._queue.next_step(suspect.order) is None
    late = bench.begin(bench.order("deaf", {"here": str(bench.path()), "until": str(gate)}))
    wait_for(lambda: len(bench.gpu._queue.waiting) == 2)
    assert bench.gpu._queue.next_step(late.order) is None
    gate.touch()
    assert len({first.end(), suspect.end(), late.end()}) == 1


def test_a_load_that_kills_the_process_is_a_suspect_beside_the_runs(bench: Bench):
    gate, here = bench.path(), bench.path()
    going = bench.begin(bench.order("deaf", {"here": str(here), "until": str(gate)}))
    wait_for(here.exists)
    loader = bench.order("bad_load_crashes")
    for expected in (Interrupted, ProcessDied, ProcessDied):
        with pytest.raises(expected):
            bench.begin(dataclasses.replace(loader, attempt=f"{loader.attempt}-{expected}")).end()
    with pytest.raises(Interrupted):
        going.end()


def test_few_suspects_are_kept():
    suspects = Suspects()
    for number in range(KEPT_SUSPECTS + 1):
        suspects.add(f"job-{number}")
    assert "job-0" not in suspects
    assert "job-1" in suspects
