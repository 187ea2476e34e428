"""What is read from the driver; the fake that the tests read from has the real library's signatures."""

from __future__ import annotations

import inspect
import os

import pytest

from gpus.local.device import CPU, NoSuchDevice, choose_device
from gpus.local.nvml import Nvml, NvmlError, VramGauge
from gpus.local.telemetry import MachineMeter, measure
from tests.gpus.local.fake_nvml import Card, FakeNvml

OURS = os.getsid(0)


def test_the_fake_has_the_real_librarys_signatures():
    import pynvml

    functions = [name for name in vars(FakeNvml) if name.startswith("nvml")]
    assert len(functions) > 10
    for name in functions:
        fake = [
            parameter
            for parameter in inspect.signature(getattr(FakeNvml, name)).parameters
            if parameter != "self"
        ]
        assert fake == list(inspect.signature(getattr(pynvml, name)).parameters), name
    for name in ("NVML_TEMPERATURE_GPU", "NVML_MEMORY_ERROR_TYPE_UNCORRECTED", "NVML_VOLATILE_ECC"):
        assert getattr(FakeNvml, name) == getattr(pynvml, name)
    assert issubclass(pynvml.NVMLError, Exception)


def test_what_is_asked_of_the_library_is_in_the_fake():
    import gpus.local.nvml as module

    asked = {word for word in module.__dict__["Nvml"].__init__.__code__.co_names if word.startswith("nvml")}
    for function in vars(Nvml).values():
        if inspect.isfunction(function):
            asked |= {name for name in function.__code__.co_names if name.startswith("nvml")}
    assert asked
    assert all(hasattr(FakeNvml, name) for name in asked)


def test_no_driver_is_no_gpu():
    with pytest.raises(NvmlError, match="no NVIDIA driver"):
        Nvml(FakeNvml())


def test_a_reading_says_what_the_card_tells():
    card = Card("GPU-a", utilisation=87, ecc=2, throttled=0x40, processes=[(1, 500), (2, None)])
    reading = Nvml(FakeNvml(card)).read("GPU-a")
    assert (reading.total_mb, reading.used_mb, reading.utilisation) == (16_000, 1_000, 87.0)
    assert (reading.temperature, reading.power, reading.ecc_errors) == (40, 60.0, 2)
    assert reading.throttled == ("hardware thermal",)
    assert reading.processes == {1: 500.0, 2: None}


def test_what_a_card_does_not_tell_is_left_open_and_a_lost_card_is_an_error():
    card = Card("GPU-a", utilisation=None, ecc=None)
    nvml = Nvml(FakeNvml(card))
    assert (nvml.read("GPU-a").utilisation, nvml.read("GPU-a").ecc_errors) == (None, None)
    card.lost = True
    with pytest.raises(NvmlError, match="GPU is lost"):
        nvml.read("GPU-a")


def test_a_gpu_is_named_by_index_or_uuid_and_a_part_by_its_own():
    cards = [Card("GPU-aaaa1111-x"), Card("GPU-bbbb2222-x", parts=[Card("MIG-cccc3333-x")])]
    uuids = Nvml(FakeNvml(*cards)).uuids()
    assert uuids == ["GPU-aaaa1111-x", "GPU-bbbb2222-x", "MIG-cccc3333-x"]
    assert choose_device("1", uuids).uuid == "GPU-bbbb2222-x"
    assert choose_device("gpu-AAAA", uuids).index == 0
    part = choose_device("MIG-cccc3333-x", uuids)
    assert (part.index, part.label) == (None, "mig-cccc3333")
    assert part.environment()["CUDA_VISIBLE_DEVICES"] == "MIG-cccc3333-x"
    assert choose_device("none", uuids) is CPU
    assert CPU.environment()["CUDA_VISIBLE_DEVICES"] == ""
    for wrong, there in (("2", uuids), ("GPU-", uuids), ("0", [])):
        with pytest.raises(NoSuchDevice):
            choose_device(wrong, there)


def test_memory_of_other_processes_is_told_from_ours():
    card = Card("GPU-a", used_mb=3_000, processes=[(os.getpid(), 1_200), (999_999, 1_500)])
    memory = VramGauge(Nvml(FakeNvml(card)), "GPU-a").read(OURS)
    assert (memory.total, memory.own, memory.others) == (16_000, 1_200, 1_800)
    memory = VramGauge(Nvml(FakeNvml(card)), "GPU-a", also=lambda: {999_999, os.getpid()}).read(OURS)
    assert (memory.own, memory.beside, memory.others) == (2_700, 1_500, 300), "a unit's, beside the session"


def test_where_the_driver_names_no_process_what_was_there_before_is_others():
    card = Card("GPU-a", used_mb=3_000)
    gauge = VramGauge(Nvml(FakeNvml(card)), "GPU-a")
    card.used_mb = 5_000
    assert (gauge.read(OURS).own, gauge.read(OURS).others) == (2_000, 3_000)
    assert gauge.read(None).own == 0


def test_telemetry_has_the_gpu_where_there_is_one_and_the_machine_always():
    nvml = Nvml(FakeNvml(Card("GPU-a", processes=[(7, 10)])))
    found = measure(MachineMeter(), lambda: nvml.read("GPU-a"), warm=["m"], ram_mb=3.2, now=lambda: 5.0)
    assert (found["at"], found["warm"], found["models_ram_mb"]) == (5.0, ["m"], 3)
    assert found["gpu"]["processes"] == {"7": 10.0}
    assert 0 < found["ram_used_mb"] < found["ram_total_mb"]
    assert "gpu" not in measure(MachineMeter(), None, warm=[], ram_mb=0)


def test_a_gpu_that_cannot_be_read_says_so_in_its_telemetry():
    nvml = Nvml(FakeNvml(Card("GPU-a")))
    found = measure(MachineMeter(), lambda: nvml.read("GPU-b"), warm=[], ram_mb=0)
    assert "Not Found" in found["gpu_error"]
