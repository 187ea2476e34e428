"""Runs in a real model process: how they end, and what that costs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from unittest.mock import ANY

import pytest

from gpu_host.handlers.errors import Failure
from gpu_host.local.device import RamGauge, session_pids
from gpu_host.local.gpu import LocalGpu
from gpu_host.local.orders import EndErrors, Stopped, error_of
from gpus.errors import (
    BadInput,
    DoesNotFit,
    GpuBusy,
    GpuFault,
    Interrupted,
    OutOfMemory,
    ProcessDied,
    RunFailed,
    RunTimedOut,
)
from gpus.runners.base import Abort
from tests.support.local_bench import MODELS, Bench
from tests.support.waiting import wait_for


def test_a_run_returns_its_result_and_its_events(bench: Bench):
    order = bench.order("wild", {"do": "reports"})
    job, attempt, folder = bench.begin(order).end()
    assert (job, attempt) == (order.job, order.attempt)
    assert (Path(folder) / "image.png").read_bytes() == b"png"
    assert [(kind, value) for _, kind, value in bench.heard] == [
        ("progress", 0.5),
        ("log", ANY),
        ("partial", "tok"),
        ("progress", {"value": 1.0, "text": "saved"}),
    ]
    assert bench.log_of(order) == [("log", "half step=1")]


@pytest.mark.parametrize(
    ("what", "error", "words"),
    [
        ("input", BadInput, "no prompt"),
        ("transient", GpuFault, "again"),
        ("memory", OutOfMemory, "too large"),
        ("shape", RunFailed, "ValueError: shape"),
        ("exit", RunFailed, "SystemExit"),
    ],
)
def test_a_handlers_error_has_its_class_and_its_traceback(bench: Bench, what, error, words):
    pid = bench.wild("echo")
    with pytest.raises(error, match=words) as raised:
        bench.wild("raises", what=what)
    assert type(raised.value) is error
    assert "models.py" in raised.value.detail
    assert not raised.value.suspect
    assert not raised.value.process_died
    assert bench.wild("echo") == pid, "the process goes on"


def test_a_result_that_is_no_json_fails_the_run(bench: Bench):
    with pytest.raises(RunFailed, match="not JSON"):
        bench.wild("not_json")


def test_an_error_without_words_has_its_class(bench: Bench):
    pid = bench.wild("echo")
    with pytest.raises(RunFailed, match="Mute"):
        bench.wild("mute")
    assert bench.wild("echo") == pid


def test_a_result_that_fails_while_it_is_written_fails_the_run(bench: Bench):
    with pytest.raises(RunFailed, match="not JSON: OSError: nothing to say"):
        bench.wild("end_mute")


def test_a_process_that_cannot_send_any_more_ends(bench: Bench):
    with pytest.raises(ProcessDied, match="status 1"):
        bench.wild("spoil")
    assert bench.wild("echo")


@pytest.mark.parametrize(
    ("do", "words"), [("crashes", "SIGSEGV"), ("is_killed", "SIGKILL"), ("exits", "status 3")]
)
def test_a_process_that_dies_costs_its_run_a_death_and_is_replaced(bench: Bench, do, words):
    pid = bench.wild("echo")
    with pytest.raises(ProcessDied, match=words) as raised:
        bench.wild(do)
    assert raised.value.process_died
    assert raised.value.code == "server_lost"
    assert bench.wild("echo") != pid


def test_a_sticky_gpu_error_replaces_the_process(bench: Bench):
    pid = bench.wild("echo")
    with pytest.raises(GpuFault, match="illegal memory access") as raised:
        bench.wild("raises", what="sticky")
    assert not raised.value.process_died
    assert bench.wild("echo") != pid


def test_garbage_on_standard_output_goes_to_the_log_and_not_into_the_protocol(bench: Bench):
    order = bench.order("wild", {"do": "garbage"})
    assert bench.begin(order).end() == "clean"
    lines = bench.log_of(order)
    assert ("stdout", r"\x00\x00\x00\x05hello garbage") in lines
    assert ("stderr", "to stderr") in lines
    assert all(text.isprintable() for _, text in lines)
    assert len(lines) < 200, "floods are cut"
    assert bench.wild("echo")


@pytest.mark.usefixtures("patient")
def test_a_run_that_stops_after_its_cancel_leaves_the_process_alone(bench: Bench):
    pid, here = bench.wild("echo"), bench.path()
    going = bench.begin(bench.order("wild", {"do": "waits", "here": str(here)}))
    wait_for(here.exists)
    going.abort.fire()
    with pytest.raises(Interrupted):
        going.end()
    assert bench.gpu.stop_run(going.order.attempt) in (Stopped.OBEYED, Stopped.NOT_RUNNING)
    assert bench.wild("echo") == pid


def test_a_handler_that_cancels_itself_fails_its_run(bench: Bench):
    with pytest.raises(RunFailed, match="without a cancel") as raised:
        bench.wild("cancels_itself")
    assert raised.value.counts


def test_a_run_that_ignores_its_cancel_is_killed_and_a_bystander_pays_nothing(bench: Bench):
    here, open_gate, beside = bench.path(), bench.path(), bench.path()
    bystander = bench.begin(bench.order("twice", {"here": str(beside), "until": str(open_gate)}))
    wait_for(beside.exists)
    going = bench.begin(bench.order("wild", {"do": "hangs", "here": str(here)}))
    wait_for(here.exists)
    pid_before = bench.gpu.session
    going.abort.fire()
    with pytest.raises(Interrupted):
        going.end()
    assert bench.gpu.stop_run(going.order.attempt) is Stopped.KILLED
    with pytest.raises(Interrupted) as raised:
        bystander.end()
    assert (raised.value.counts, raised.value.suspect) == (False, False)
    bench.wild("echo")
    assert bench.gpu.session != pid_before


def test_a_run_that_hangs_past_its_limit_is_killed_and_counts_as_a_death(bench: Bench):
    with pytest.raises(RunTimedOut, match="killed") as raised:
        bench.run("wild", {"do": "hangs"}, limit_seconds=0.2)
    assert raised.value.process_died
    assert not raised.value.suspect


def test_two_runs_that_are_killed_at_once_each_end_with_their_own_error(bench: Bench):
    bench.gpu.release_memory()
    going = [bench.begin(bench.order("deaf", limit_seconds=0.5)) for _ in range(2)]
    for one in going:
        with pytest.raises(RunTimedOut):
            one.end()
    first, second = (
        EndErrors({"a": BadInput("a")}, BadInput("o")),
        EndErrors({"a": BadInput("b"), "b": BadInput("b")}),
    )
    both = first.joined(second)
    assert (both.by_attempt, both.others) == (
        {"a": first.by_attempt["a"], "b": second.by_attempt["b"]},
        first.others,
    )


def test_the_errors_of_an_ended_process_do_not_affect_the_next_one(bench: Bench):
    bench.wild("echo")
    assert bench.gpu.release_memory()
    bench.gpu.end_process(EndErrors(others=BadInput("of no process")))
    with pytest.raises(ProcessDied):
        bench.wild("crashes")


@pytest.mark.usefixtures("patient")
def test_a_run_past_its_limit_that_stops_after_its_cancel_is_only_late(bench: Bench):
    with pytest.raises(RunTimedOut) as raised:
        bench.run("wild", {"do": "waits", "here": str(bench.path())}, limit_seconds=0.2)
    assert not raised.value.process_died
    assert raised.value.unfinished, "it ran, and must not run again where once is the most"


def test_a_run_that_stopped_after_its_cancel_costs_nothing_and_is_unfinished():
    heeded = error_of(Failure("cancelled", "Cancelled"), cancelled=True)
    assert isinstance(heeded, Interrupted)
    assert (heeded.counts, heeded.suspect, heeded.unfinished) == (False, False, True)


def test_a_process_forked_by_a_handler_sends_nothing_and_ends_with_its_parent(bench: Bench):
    here = bench.path()
    assert bench.wild("forks", here=str(here)) == "from the parent"
    stays = int(here.read_text())
    assert bench.wild("echo")
    with pytest.raises(ProcessDied):
        bench.wild("crashes")
    wait_for(lambda: not Path(f"/proc/{stays}").exists())


def test_a_process_ends_with_its_children_when_its_worker_closes_the_lifeline(bench: Bench):
    here = bench.path()
    bench.wild("forks", here=str(here))
    session, stays = bench.gpu.session, int(here.read_text())
    assert session is not None
    bench.gpu.stop()
    assert not Path(f"/proc/{stays}").exists()
    assert session_pids(session) == []
    assert bench.wild("echo") != os.getpid()


def test_a_warden_that_model_code_stopped_ends_all_the_same(bench: Bench):
    here = bench.path()
    bench.wild("forks", here=str(here))
    session = bench.gpu.session
    assert session is not None
    os.kill(session, signal.SIGSTOP)
    bench.gpu.stop()
    assert not Path(f"/proc/{here.read_text()}").exists()
    assert bench.wild("echo")


def test_a_signal_to_its_warden_ends_no_model_process(bench: Bench):
    pid, warden = bench.wild("echo"), bench.gpu.session
    assert warden is not None
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        os.kill(warden, number)
    assert bench.wild("echo") == pid


WORKER = """
import sys
from threading import Event
from gpu_host.local.process import ModelProcess

ready = Event()
process = ModelProcess([sys.argv[1]], on_frame=lambda frame: ready.set(), on_exit=print, output=print)
ready.wait()
print(process.session, flush=True)
Event().wait()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux signals the death of the parent")
def test_a_warden_that_model_code_stopped_ends_with_its_killed_worker():
    with subprocess.Popen(
        [sys.executable, "-c", WORKER, MODELS], stdout=subprocess.PIPE, text=True
    ) as worker:
        assert worker.stdout is not None
        warden = int(worker.stdout.readline())
        os.kill(warden, signal.SIGSTOP)
        worker.kill()
    wait_for(lambda: not session_pids(warden))


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux signals the death of the parent")
def test_a_model_process_ends_with_its_killed_warden_whatever_its_worker_does():
    with subprocess.Popen(
        [sys.executable, "-c", WORKER, MODELS], stdout=subprocess.PIPE, text=True
    ) as worker:
        assert worker.stdout is not None
        warden = int(worker.stdout.readline())
        (model,) = (pid for pid in session_pids(warden) if pid != warden)
        os.kill(worker.pid, signal.SIGSTOP)
        os.kill(warden, signal.SIGKILL)
        try:
            wait_for(lambda: model not in session_pids(warden))
        finally:
            worker.kill()


def test_a_load_that_fails_fails_its_run_only(bench: Bench):
    with pytest.raises(RunFailed, match="no weights"):
        bench.run("bad_load")
    assert "bad_load" not in bench.gpu.warm()
    assert bench.wild("echo")


def test_models_that_cannot_be_imported_cost_jobs_nothing(bench: Bench, tmp_path: Path):
    other = LocalGpu(["no.such.module"], gauge=RamGauge(), environment={}, output_root=tmp_path)
    with pytest.raises(GpuBusy, match="No module named 'no'") as raised:
        other.run(bench.order("a"), Abort())
    assert not raised.value.counts


def test_a_model_that_can_never_fit_fails_its_run(bench: Bench):
    with pytest.raises(DoesNotFit, match=r"huge needs 50000000 MB, and this device has 5\d\d MB"):
        bench.run("huge")
