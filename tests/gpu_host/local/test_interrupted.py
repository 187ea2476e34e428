"""A run that is cancelled while its own thread spawns or loads ends at once, at no cost."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu_host.local.device import RamGauge
from gpu_host.local.gpu import LocalGpu
from gpus.errors import GpuError, Interrupted
from tests.support.local_bench import Bench, Going
from tests.support.waiting import wait_for


@pytest.fixture(autouse=True)
def fresh(bench: Bench) -> Iterator[None]:
    for name in ("loading", "importing", "go"):
        (bench.folder / name).unlink(missing_ok=True)
    yield
    (bench.folder / "go").touch()


def costs_nothing(going: Going) -> None:
    with pytest.raises(Interrupted) as raised:
        going.end()
    error: GpuError = raised.value
    assert (error.counts, error.suspect, error.process_died, error.unfinished) == (False,) * 4


def test_a_cancel_ends_a_load(bench: Bench):
    going = bench.begin(bench.order("slow_load"))
    wait_for((bench.folder / "loading").exists)
    going.abort.fire()
    costs_nothing(going)
    assert bench.gpu.session is None
    assert bench.wild("echo")


def test_a_cancel_does_not_end_a_load_beside_a_run(bench: Bench):
    gate, here = bench.path(), bench.path()
    beside = bench.begin(bench.order("twice", {"here": str(here), "until": str(gate)}))
    wait_for(here.exists)
    session = bench.gpu.session
    going = bench.begin(bench.order("slow_load"))
    wait_for((bench.folder / "loading").exists)
    going.abort.fire()
    gate.touch()
    assert beside.end() == str(here)
    costs_nothing(going)
    assert session is not None


def test_a_cancel_ends_a_spawn(bench: Bench, tmp_path: Path):
    gpu = LocalGpu(
        ["tests.gpu_host.local.slow_import"],
        gauge=RamGauge(),
        environment={"TEST_FOLDER": str(bench.folder)},
        output_root=tmp_path,
    )
    going = Going(gpu, bench.order("slow_import"))
    wait_for((bench.folder / "importing").exists)
    going.abort.fire()
    costs_nothing(going)
    assert gpu.session is None


def test_a_worker_that_stops_during_a_load_costs_nothing(bench: Bench):
    going = bench.begin(bench.order("slow_load"))
    wait_for((bench.folder / "loading").exists)
    bench.gpu.stop()
    costs_nothing(going)
