"""The bounds of a telemetry reading."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from gpu_host.local.nvml import GpuReading
from gpu_host.local.telemetry import MachineMeter, measure
from gpus.leasing.readings import (
    GPU_MEASURES,
    MACHINE_MEASURES,
    MAX_READING_BYTES,
    clean_reading,
    measures_of,
)

WHOLE = GpuReading(
    16384.0, 8192.0, 87.0, 61, 250.0, 0, ("hardware thermal",), {77: 8000.0, 78: None}, {31: 2}
)


def whole_reading() -> dict[str, Any]:
    return measure(MachineMeter(), lambda: WHOLE, warm=["flux"], ram_mb=700)


def test_readings_of_a_worker_are_not_changed() -> None:
    reading = whole_reading()
    reading["gpu"]["throttled"] = list(reading["gpu"]["throttled"])
    assert clean_reading(reading) == reading
    assert clean_reading(json.loads(json.dumps(reading))) == reading


def test_every_measure_is_one_that_a_worker_can_have() -> None:
    reading = whole_reading() | {"cpu_percent": 1.0, "ram_used_mb": 1, "ram_total_mb": 2}
    assert set(measures_of(clean_reading(reading))) == {*GPU_MEASURES, *MACHINE_MEASURES}


@pytest.mark.parametrize(
    "value", [math.nan, math.inf, -math.inf, 1e300, 10**400, -1e9, "80", True, None, [], {}, [80]]
)
def test_a_number_that_cannot_be_is_left_out(value: Any) -> None:
    names = ("total_mb", "used_mb", "utilisation", "temperature", "power", "ecc_errors")
    machine = ("at", "cpus", "cpu_percent", "ram_used_mb", "ram_total_mb", "models_ram_mb")
    found = clean_reading({"gpu": dict.fromkeys(names, value), **dict.fromkeys(machine, value)})
    assert found == {"warm": [], "gpu": {"throttled": [], "processes": {}, "xids": {}}}


@pytest.mark.parametrize("reading", [None, 7, "text", [], [{}] * 10_000, math.nan])
def test_a_value_that_is_not_an_object_is_an_empty_reading(reading: Any) -> None:
    assert clean_reading(reading) == {}


def test_texts_and_lists_are_cut_so_that_every_reading_fits() -> None:
    many = [f"{number:064}" for number in range(10_000)]
    found = clean_reading(
        {
            "warm": many,
            "gpu_error": "\x1b[2J" + "é" * 10_000,
            "gpu": {
                "throttled": ["é" * 10_000] * 10_000,
                "processes": {str(number): 1e9 / 3 for number in range(10**9, 10**9 + 10_000)} | {"x": 1},
                "xids": {"9" * 40: 1, "-1": 1, "31": 2, "²": 1},
            },
        }
    )
    assert found["gpu_error"].startswith("[2J")
    assert (len(found["warm"]), len(found["gpu"]["processes"])) == (64, 64)
    assert found["gpu"]["xids"] == {"31": 2}
    assert len(found["gpu"]["throttled"]) == 16
    assert len(json.dumps(found)) < MAX_READING_BYTES
    assert clean_reading({"warm": ["a,b", "a:b", "", 7, "ok\n", "ok"]}) == {"warm": ["ok"]}
