"""Readings of the driver; the tests' fake has the real library's signatures."""

from __future__ import annotations

import inspect
import os
from types import CodeType, ModuleType

import pytest

from gpu_host.local import nvml as nvml_module
from gpu_host.local import nvml as xids_module
from gpu_host.local.device import CPU, NoSuchDevice, choose_device
from gpu_host.local.nvml import Nvml, NvmlError, VramGauge
from gpu_host.local.telemetry import MachineMeter, measure
from tests.support.fake_nvml import Card, FakeNvml

OURS = os.getsid(0)


def test_the_fake_has_the_real_librarys_signatures():
    import pynvml

    functions = [
        name for name, value in vars(FakeNvml).items() if name.startswith("nvml") and callable(value)
    ]
    assert len(functions) > 10
    for name in functions:
        fake = [
            parameter
            for parameter in inspect.signature(getattr(FakeNvml, name)).parameters
            if parameter != "self"
        ]
        assert fake == list(inspect.signature(getattr(pynvml, name)).parameters), name
    for name in (
        "NVML_TEMPERATURE_GPU",
        "NVML_MEMORY_ERROR_TYPE_UNCORRECTED",
        "NVML_VOLATILE_ECC",
        "nvmlEventTypeXidCriticalError",
    ):
        assert getattr(FakeNvml, name) == getattr(pynvml, name)
    assert {"eventType", "eventData", "gpuInstanceId"} <= {
        name for name, _ in pynvml.c_nvmlEventData_t._fields_
    }
    assert issubclass(pynvml.NVMLError, Exception)


def test_the_fake_has_every_function_that_is_used():
    asked = {name for module in (nvml_module, xids_module) for name in names_in(code_of(module))}
    found = {name for name in asked if name.lower().startswith("nvml") and name != "nvml"}
    assert {"nvmlInit", "nvmlEventSetWait_v2", "nvmlDeviceGetUUID"} <= found
    assert [name for name in found if not hasattr(FakeNvml, name) and not hasattr(nvml_module, name)] == []


def code_of(module: ModuleType) -> CodeType:
    return compile(inspect.getsource(module), module.__name__, "exec")


def names_in(code: CodeType) -> set[str]:
    inner = (names_in(one) for one in code.co_consts if isinstance(one, CodeType))
    return set(code.co_names).union(*inner)


def test_no_driver_is_no_gpu():
    with pytest.raises(NvmlError, match="no NVIDIA driver"):
        Nvml(FakeNvml())


def test_a_reading_has_the_values_of_the_card():
    card = Card("GPU-a", utilisation=87, ecc=2, throttled=0x40, processes=[(1, 500), (2, None)])
    reading = Nvml(FakeNvml(card)).read("GPU-a")
    assert (reading.total_mb, reading.used_mb, reading.utilisation) == (16_000, 1_000, 87.0)
    assert (reading.temperature, reading.power, reading.ecc_errors) == (40, 60.0, 2)
    assert reading.throttled == ("hardware thermal",)
    assert reading.processes == {1: 500.0, 2: None}


def test_unsupported_values_are_none_and_a_lost_card_is_an_error():
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
    assert choose_device("gpu-AAAA", uuids).uuid == "GPU-aaaa1111-x"
    part = choose_device("MIG-cccc3333-x", uuids)
    assert part.label == "mig-cccc3333"
    assert part.environment()["CUDA_VISIBLE_DEVICES"] == "MIG-cccc3333-x"
    assert choose_device("none", uuids) is CPU
    assert CPU.environment()["CUDA_VISIBLE_DEVICES"] == ""
    for wrong, there in (("2", uuids), ("GPU-", uuids), ("0", [])):
        with pytest.raises(NoSuchDevice):
            choose_device(wrong, there)


def test_memory_of_other_processes_is_separate_from_ours():
    card = Card("GPU-a", used_mb=3_000, processes=[(os.getpid(), 1_200), (999_999, 1_500)])
    memory = VramGauge(Nvml(FakeNvml(card)), "GPU-a").read(OURS)
    assert (memory.total, memory.own, memory.others) == (16_000, 1_200, 1_800)
    memory = VramGauge(Nvml(FakeNvml(card)), "GPU-a", extra=lambda: {999_999, os.getpid()}).read(OURS)
    assert (memory.own, memory.outside_session, memory.others) == (2_700, 1_500, 300), (
        "a unit's, beside the session"
    )


def test_without_process_names_earlier_memory_counts_as_others():
    card = Card("GPU-a", used_mb=3_000)
    gauge = VramGauge(Nvml(FakeNvml(card)), "GPU-a")
    card.used_mb = 5_000
    assert (gauge.read(OURS).own, gauge.read(OURS).others) == (2_000, 3_000)
    assert gauge.read(None).own == 0


def test_without_process_memory_later_growth_counts_as_ours():
    card = Card("GPU-a", used_mb=1_000)
    gauge = VramGauge(Nvml(FakeNvml(card)), "GPU-a")
    card.used_mb, card.processes = 5_000, [(os.getpid(), None)]
    assert (gauge.read(OURS).own, gauge.read(OURS).others) == (4_000, 1_000)
    gauge = VramGauge(Nvml(FakeNvml(card)), "GPU-a", extra=lambda: {999_999})
    card.used_mb, card.processes = 7_000, [(os.getpid(), None), (999_999, 500)]
    assert gauge.read(OURS).own == 2_000


def test_a_lost_card_keeps_its_index():
    cards = [Card("GPU-aaaa1111-x"), Card("GPU-bbbb2222-x", parts=[Card("MIG-cccc3333-x")])]
    cards[0].lost = True
    uuids = Nvml(FakeNvml(*cards)).uuids()
    assert uuids == ["", "GPU-bbbb2222-x", "MIG-cccc3333-x"]
    assert choose_device("1", uuids).uuid == "GPU-bbbb2222-x"
    with pytest.raises(NoSuchDevice, match=r"GPU 0 does not answer: there are 0 \(no answer\), GPU-bbbb"):
        choose_device("0", uuids)
    with pytest.raises(NoSuchDevice, match="GPU 2 is not there"):
        choose_device("2", uuids)


def test_a_gpu_is_read_on_while_another_is_lost():
    cards = [Card("GPU-a"), Card("GPU-b")]
    nvml = Nvml(FakeNvml(*cards))
    nvml.read("GPU-b")
    cards[0].lost = True
    assert nvml.read("GPU-b").total_mb == 16_000
    assert nvml.read("GPU-b").total_mb == 16_000


def test_a_mig_instance_has_its_cards_errors_and_temperature_but_not_its_utilisation():
    part = Card("MIG-1", used_mb=300, utilisation=None, ecc=None, temperature=None, power_mw=None)
    card = Card("GPU-a", used_mb=9_000, utilisation=97, ecc=2, temperature=71, parts=[part])
    reading = Nvml(FakeNvml(card)).read("MIG-1")
    assert (reading.used_mb, reading.utilisation) == (300, None)
    assert (reading.ecc_errors, reading.temperature, reading.power) == (2, 71, 60.0)


def test_telemetry_has_the_gpu_where_there_is_one_and_the_machine_always():
    nvml = Nvml(FakeNvml(Card("GPU-a", processes=[(7, 10)], xids=[(13, 0)])))
    found = measure(MachineMeter(), lambda: nvml.read("GPU-a"), warm=["m"], ram_mb=3.2, now=lambda: 5.0)
    assert (found["at"], found["warm"], found["models_ram_mb"]) == (5.0, ["m"], 3)
    assert found["gpu"]["processes"] == {"7": 10.0}
    assert found["gpu"]["xids"] == {"13": 1}
    assert 0 < found["ram_used_mb"] < found["ram_total_mb"]
    assert "gpu" not in measure(MachineMeter(), None, warm=[], ram_mb=0)


def test_telemetry_has_the_error_of_an_unreadable_gpu():
    nvml = Nvml(FakeNvml(Card("GPU-a")))
    found = measure(MachineMeter(), lambda: nvml.read("GPU-b"), warm=[], ram_mb=0)
    assert "Not Found" in found["gpu_error"]
