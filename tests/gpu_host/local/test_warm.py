"""Which models stay loaded, which are unloaded, and which processes are replaced because memory is not
freed."""

from __future__ import annotations

import os
import signal

import pytest

from gpu_host.local.gpu import LocalGpu
from gpus.errors import OutOfMemory, ProcessDied
from tests.support.local_bench import Bench
from tests.support.waiting import wait_for


@pytest.fixture(autouse=True)
def empty(bench: Bench) -> None:
    assert bench.gpu.release_memory()
    bench.events.clear()


def test_a_warm_model_is_not_loaded_again(bench: Bench):
    first = bench.run("a")["pid"]
    loads = bench.gpu.loads
    assert [bench.run("a")["pid"] for _ in range(3)] == [first] * 3
    assert bench.gpu.loads == loads


def test_two_models_that_do_not_fit_together_take_turns(bench: Bench):
    """Budget 600, each 200 plus the process itself: two fit, three do not."""
    for model in ("a", "b", "c", "a"):
        assert bench.run(model)["model"] == model
    assert len(bench.gpu.warm()) <= 2
    assert not any(event == "model_process_replaced" for event, _ in bench.events)


def test_a_run_that_needs_the_room_of_another_waits_for_its_end(bench: Bench):
    gate = bench.path()
    holding = [bench.begin(bench.order(model, {"until": str(gate)})) for model in ("a", "b")]
    wait_for(lambda: len(bench.gpu.running()) == 2)
    third = bench.begin(bench.order("c"))
    behind = bench.begin(bench.order("a"))
    wait_for(lambda: len(bench.gpu._queue.waiting) == 2)
    assert "c" not in bench.gpu.warm()
    gate.touch()
    assert [going.end()["model"] for going in (*holding, third, behind)] == ["a", "b", "c", "a"]


def test_no_run_overtakes_one_that_waits_for_memory(bench: Bench):
    """`twice` has capacity for another run, but the run queued before it needs the memory of the others."""
    gate, here, late = bench.path(), bench.path(), bench.path()
    holding = [
        bench.begin(bench.order("twice", {"here": str(here), "until": str(gate)})),
        *(bench.begin(bench.order(model, {"until": str(gate)})) for model in ("a", "b")),
    ]
    wait_for(lambda: len(bench.gpu.running()) == 3)
    waiting = bench.begin(bench.order("c"))
    wait_for(lambda: [order.model for order in bench.gpu._queue.waiting] == ["c"])
    behind = bench.begin(bench.order("twice", {"here": str(late), "until": str(gate)}))
    wait_for(lambda: [order.model for order in bench.gpu._queue.waiting] == ["c", "twice"])
    assert bench.gpu._queue.next_step(behind.order) is None
    assert not late.exists()
    gate.touch()
    for going in (*holding, waiting, behind):
        going.end()


def test_a_model_runs_as_often_at_once_as_it_says(bench: Bench):
    gate, paths = bench.path(), [bench.path() for _ in range(3)]
    going = [bench.begin(bench.order("twice", {"here": str(path), "until": str(gate)})) for path in paths]
    wait_for(lambda: sum(path.exists() for path in paths) == 2)
    assert len(bench.gpu.running()) == 2
    gate.touch()
    assert [one.end() for one in going] == [str(path) for path in paths]


def test_memory_that_does_not_come_back_replaces_the_process(bench: Bench):
    bench.run("keeps")
    session = bench.gpu.session
    bench.gpu.tick()
    assert bench.gpu.session not in (session, None)
    assert any(
        event == "model_process_replaced" and "did not come back" in fields["why"]
        for event, fields in bench.events
    )


def test_a_gpu_error_during_an_unload_ends_no_thread(bench: Bench):
    bench.run("late_fault")
    session = bench.gpu.session
    bench.gpu.tick()
    assert bench.gpu.warm() == []
    assert bench.gpu.session == session
    assert bench.gpu.release_memory()


def test_a_context_that_outlives_its_run_does_not_hold_the_model(bench: Bench):
    bench.run("keeps_context")
    session = bench.gpu.session
    bench.gpu.tick()
    assert bench.gpu.warm() == []
    assert bench.gpu.session == session


def test_a_process_that_leaks_is_replaced_before_its_memory_is_gone(bench: Bench):
    pids = {bench.run("leaks", {"mib": 60}) for _ in range(4)}
    assert len(pids) == 1
    bench.gpu.tick()
    assert bench.run("leaks", {"mib": 1}) not in pids
    assert ("model_process_replaced", {"why": "it leaks"}) in bench.events


def test_ready_models_are_reported_and_a_dead_process_has_none(bench: Bench):
    bench.run("a")
    pid = bench.run("b")["pid"]
    assert bench.gpu.ready() == ["b", "a"]
    gate = bench.path()
    going = bench.begin(bench.order("a", {"until": str(gate)}))
    wait_for(bench.gpu.running)
    assert bench.gpu.ready() == ["b"]
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(ProcessDied):
        going.end()
    assert bench.gpu.ready() == []


def test_an_idle_model_is_unloaded(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    bench.run("a")
    shelf = bench.gpu._loaded
    bench.gpu.tick()
    assert bench.gpu.warm() == ["a"]
    now = shelf.warm["a"].last_used
    monkeypatch.setattr("gpu_host.local.loaded_models.time.monotonic", lambda: now + 301)
    bench.gpu.tick()
    assert bench.gpu.warm() == []


def test_release_memory_frees_everything_and_the_next_run_spawns_again(bench: Bench):
    bench.run("a")
    assert bench.gpu.release_memory()
    assert bench.gpu.session is None
    assert bench.run("a")["model"] == "a"


def test_a_load_that_runs_out_of_memory_is_tried_without_the_idle_models(bench: Bench):
    bench.run("a")
    assert bench.run("understated")["model"] == "understated"
    assert bench.gpu.warm() == ["understated"]
    gate = bench.path()
    bench.run("a")
    assert bench.gpu.release_memory()
    busy = bench.begin(bench.order("a", {"until": str(gate)}))
    wait_for(lambda: len(bench.gpu.running()) == 1)
    with pytest.raises(OutOfMemory, match="too little"):
        bench.run("understated")
    gate.touch()
    busy.end()


def test_loads_are_counted(bench: Bench):
    gpu: LocalGpu = bench.gpu
    before = gpu.loads
    for model in ("a", "a", "b", "b", "a"):
        bench.run(model)
    assert gpu.loads - before == 2
