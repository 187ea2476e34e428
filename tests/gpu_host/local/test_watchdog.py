"""When a run counts as hung, and when a GPU may take no runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from gpu_host.handlers.code import Declared
from gpu_host.local.nvml import GpuReading
from gpu_host.local.orders import Order, Run, Stopped
from gpu_host.local.watchdog import Activity, Watchdog, hung_runs, observe, unhealthy_reason
from gpus.errors import RunTimedOut

MODELS = {"m": Declared("m", quiet_seconds=60.0), "patient": Declared("patient")}


def run(model: str = "m", *, last_sign: float = 0.0) -> Run:
    return Run(
        Order(f"attempt-{model}", "job", model, None, 10.0),
        lambda frame: None,
        began=0.0,
        last_sign=last_sign,
    )


def test_a_gpu_is_idle_since_it_began_to_be():
    seen = observe(Activity(), 0.0, 10.0)
    assert seen == observe(seen, 2.0, 15.0) == Activity(10.0)
    assert observe(seen, 50.0, 20.0) == Activity()
    assert observe(seen, None, 20.0) == Activity()


def test_silence_on_an_idle_gpu_is_a_hang():
    ours = run()
    assert hung_runs([ours], MODELS, Activity(0.0), 60.0) == [ours]
    assert hung_runs([ours], MODELS, Activity(0.0), 59.0) == []


@pytest.mark.parametrize(
    ("runs", "seen"),
    [
        ([run()], Activity()),
        ([run()], Activity(30.0)),
        ([run(last_sign=30.0)], Activity(0.0)),
        ([run("patient")], Activity(0.0)),
        ([run("unknown")], Activity(0.0)),
    ],
    ids=["a busy GPU", "busy a while ago", "a sign of life", "no quiet_seconds", "another process' model"],
)
def test_a_slow_run_is_not_dead(runs, seen):
    assert hung_runs(runs, MODELS, seen, 80.0) == []


def test_a_gpu_that_cannot_be_read_or_has_new_errors_is_sick():
    well = GpuReading(1, 1, ecc_errors=3)
    assert unhealthy_reason(well, "", ecc_at_start=3) == ""
    assert "2 uncorrected ECC errors" in unhealthy_reason(GpuReading(1, 1, ecc_errors=5), "", ecc_at_start=3)
    assert "GPU is lost" in unhealthy_reason(None, "GPU is lost", ecc_at_start=3)
    assert "Xid 79" in unhealthy_reason(GpuReading(1, 1, xids={13: 4, 79: 1}), "", ecc_at_start=0)


class Patient:
    """The part of a `LocalGpu` that the watchdog uses."""

    def __init__(self) -> None:
        self.models, self.spawned, self.sick = MODELS, 1, ""
        self.going: list[Run] = []
        self.stopped: list[tuple[str, Any]] = []
        self.kernel: str | None = ""
        self.kernel_error = ""
        self.probes = 0

    def runs(self) -> list[Run]:
        return self.going

    def stop_run(self, attempt: str, *, why: Any = None) -> Stopped:
        self.stopped.append((attempt, why))
        return Stopped.KILLED

    def probe(self) -> str | None:
        self.probes += 1
        if self.kernel is not None:
            self.kernel_error = self.kernel
        return self.kernel


class Ward:
    def __init__(self, read: Callable[[], GpuReading] | None, cpu: float | None = 0.0) -> None:
        self.cpu = cpu
        self.patient, self.now = Patient(), 1000.0
        gpu: Any = self.patient
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.doctor = Watchdog(
            gpu,
            read,
            cpu=lambda: self.cpu,
            log_event=lambda event, **fields: self.events.append((event, fields)),
            clock=lambda: self.now,
        )

    def look(self, after: float = 0.0) -> None:
        self.now += after
        self.doctor.step()


def test_a_hung_run_is_killed_and_counts_as_a_death():
    ward = Ward(lambda: GpuReading(1, 1, utilisation=0.0))
    ward.patient.going = [run(last_sign=1000.0)]
    ward.look()
    ward.look(30.0)
    assert ward.patient.stopped == []
    ward.look(31.0)
    ((attempt, why),) = ward.patient.stopped
    assert attempt == "attempt-m"
    assert isinstance(why, RunTimedOut)
    assert (why.process_died, why.suspect) == (True, False)


def test_a_small_kernel_runs_now_and_then():
    ward = Ward(lambda: GpuReading(1, 1))
    ward.look()
    ward.look(6.0)
    assert ward.patient.probes == 1
    ward.look(301.0)
    assert ward.patient.probes == 2


def test_a_skipped_probe_proves_nothing():
    ward = Ward(lambda: GpuReading(1, 1))
    ward.patient.kernel = None
    ward.look()
    ward.look(6.0)
    assert ward.patient.probes == 2, "it is still due"
    ward.patient.kernel_error = "cuInit failed"
    ward.look(6.0)
    assert ward.patient.sick == "cuInit failed"


def test_a_sick_gpu_reports_why_and_is_probed_until_it_is_healthy():
    ward = Ward(lambda: GpuReading(1, 1))
    ward.patient.kernel = "cuInit failed: CUDA error 999"
    ward.look()
    assert "999" in ward.patient.sick
    ward.patient.kernel = ""
    ward.look(6.0)
    assert ward.patient.sick == ""


def test_a_lost_gpu_is_sick():
    def lost() -> GpuReading:
        raise OSError("GPU is lost")

    ward = Ward(lost)
    ward.look()
    assert "GPU is lost" in ward.patient.sick


class Unsteady:
    """A GPU that can't be read while `lost`."""

    def __init__(self, **values: Any) -> None:
        self.lost, self.values = False, values

    def __call__(self) -> GpuReading:
        if self.lost:
            raise OSError("GPU is lost")
        return GpuReading(1, 1, **self.values)


def test_no_kernel_is_tried_while_it_cannot_be_read_and_one_at_once_after_that():
    gpu = Unsteady()
    ward = Ward(gpu)
    ward.look()
    gpu.lost = True
    ward.look(6.0)
    gpu.lost = False
    ward.look(6.0)
    assert (ward.patient.probes, ward.patient.sick) == (2, "")
    gpu.lost = True
    ward.look(301.0)
    assert ward.patient.probes == 2


def test_time_without_a_reading_does_not_count_as_idle():
    gpu = Unsteady(utilisation=0.0)
    ward = Ward(gpu)
    ward.patient.going = [run(last_sign=1000.0)]
    ward.look()
    gpu.lost = True
    ward.look(30.0)
    gpu.lost = False
    ward.look(31.0)
    ward.look(31.0)
    assert ward.patient.stopped == []
    ward.look(31.0)
    assert len(ward.patient.stopped) == 1


def test_an_xid_is_logged_and_a_kernel_tried_and_a_fatal_one_stays_sick():
    gpu = Unsteady(utilisation=50.0, xids={})
    ward = Ward(gpu)
    ward.look()
    gpu.values["xids"] = {13: 2}
    ward.look(6.0)
    ward.look(6.0)
    assert (ward.patient.probes, ward.patient.sick) == (2, "")
    assert ward.events == [("gpu_xid", {"xid": 13, "times": 2, "sick": False})]
    gpu.values["xids"] = {13: 2, 95: 1}
    ward.look(6.0)
    ward.look(301.0)
    assert ward.events[1:] == [("gpu_xid", {"xid": 95, "times": 1, "sick": True})]
    assert "Xid 95 (an uncontained memory error)" in ward.patient.sick


def test_without_utilisation_no_silent_run_is_killed_and_a_warning_is_logged_once():
    ward = Ward(lambda: GpuReading(1, 1, utilisation=None))
    ward.patient.going = [run(last_sign=0.0)]
    for _ in range(20):
        ward.look(30.0)
    assert ward.patient.stopped == []
    assert ward.events == [
        ("hang_detection_unavailable", {"why": "this GPU reports no utilisation", "models": ["m"]})
    ]


def test_without_a_gpu_none_is_read():
    ward = Ward(None)
    ward.patient.going = [run(last_sign=900.0)]
    ward.look()
    assert (ward.patient.probes, ward.patient.sick) == (0, "")
    ward.look(61.0)
    assert len(ward.patient.stopped) == 1
    assert "its process used no CPU" in str(ward.patient.stopped[0][1])


def test_without_a_gpu_a_silent_run_on_a_busy_cpu_is_not_killed():
    ward = Ward(None, cpu=100.0)
    ward.patient.going = [run(last_sign=900.0)]
    for _ in range(20):
        ward.look(30.0)
    assert ward.patient.stopped == []
    ward.cpu = None
    for _ in range(20):
        ward.look(30.0)
    assert ward.patient.stopped == [], "the end is unknown"
