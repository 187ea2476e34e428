"""The bounds of a telemetry reading, which comes from a driver or another machine, and the measures that the
summaries of a day hold.

`clean_reading` is applied before a reading is stored and after it is read. What a reading holds is made by
`gpu_host.local.telemetry.measure`; `lua/beat.lua` stores it. docs/explanation/leasing.md ("Telemetry").
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from foundation.names import NAME_PATTERN

MAX_LIST = 64
"""Models, processes and Xids of one reading; further ones are dropped."""
MAX_REASONS = 16
"""Throttle reasons of one reading, of 64 characters each."""
MAX_TEXT = 300
"""Characters of the error of a reading; the rest is dropped."""
MAX_READING_BYTES = 32 * 1024
"""A stored reading that is longer was not written by this code, and is left out."""

_MEMORY_MB = (0.0, 1e9)
_COUNT = (0.0, 1e12)
_OF_MACHINE: Mapping[str, tuple[float, float]] = {
    "at": (0.0, 4_102_444_800.0),  # the year 2100
    "models_ram_mb": _MEMORY_MB,
    "cpus": (0.0, 1e6),
    "cpu_percent": (0.0, 100.0),
    "ram_total_mb": _MEMORY_MB,
    "ram_used_mb": _MEMORY_MB,
}
_OF_GPU: Mapping[str, tuple[float, float]] = {
    "total_mb": _MEMORY_MB,
    "used_mb": _MEMORY_MB,
    "utilisation": (0.0, 100.0),
    "temperature": (-100.0, 1000.0),
    "power": (0.0, 100_000.0),
    "ecc_errors": _COUNT,
}
GPU_MEASURES = ("utilisation", "used_mb", "total_mb", "temperature", "power")
MACHINE_MEASURES = ("cpu_percent", "ram_used_mb", "ram_total_mb")
"""Numbers of a reading that the summaries of a day hold; the names are the same there."""


def clean_reading(reading: object) -> dict[str, Any]:
    """Return a copy of at most a few KB: known fields only, numbers that are finite and possible (others are
    left out), short texts. reading: any JSON value."""
    if not isinstance(reading, Mapping):
        return {}
    found: dict[str, Any] = {"warm": _names(reading.get("warm")), **_numbers(reading, _OF_MACHINE)}
    gpu = reading.get("gpu")
    if isinstance(gpu, Mapping):
        found["gpu"] = {
            **_numbers(gpu, _OF_GPU),
            "throttled": _texts(gpu.get("throttled")),
            "processes": _counts(gpu.get("processes"), _MEMORY_MB, may_be_unknown=True),
            "xids": _counts(gpu.get("xids"), _COUNT),
        }
    elif gpu is not None:
        found["gpu_error"] = "its reading is no object"
    if isinstance(error := reading.get("gpu_error"), str) and error:
        found["gpu_error"] = _text(error)
    return found


def measures_of(reading: Mapping[str, Any]) -> dict[str, float]:
    """Return the measures of a clean reading by name, without those that it does not have."""
    both = ((reading.get("gpu") or {}, GPU_MEASURES), (reading, MACHINE_MEASURES))
    return {name: part[name] for part, names in both for name in names if name in part}


def _numbers(values: Mapping[str, Any], bounds: Mapping[str, tuple[float, float]]) -> dict[str, float]:
    return {name: values[name] for name, limits in bounds.items() if _is_within(values.get(name), limits)}


def _is_within(value: object, limits: tuple[float, float]) -> bool:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return limits[0] <= value <= limits[1]


def _names(values: object) -> list[str]:
    """The names of models; others could not be parts of keys and metrics."""
    some = values[:MAX_LIST] if isinstance(values, (list, tuple)) else ()
    return [name for name in some if isinstance(name, str) and re.fullmatch(NAME_PATTERN, name)]


def _texts(values: object) -> list[str]:
    some = values[:MAX_REASONS] if isinstance(values, (list, tuple)) else ()
    return [_text(text, 64) for text in some if isinstance(text, str)]


def _text(text: str, longest: int = MAX_TEXT) -> str:
    """Without characters that pages and terminals can't show."""
    return "".join(one for one in text[:longest] if one.isprintable())


def _counts(
    values: object, limits: tuple[float, float], *, may_be_unknown: bool = False
) -> dict[str, float | None]:
    """Numbers by whole number, such as a pid; JSON has these as texts."""
    if not isinstance(values, Mapping):
        return {}
    found: dict[str, float | None] = {}
    for key, value in values.items():
        is_known = _is_within(value, limits)
        if re.fullmatch("[0-9]{1,10}", str(key)[:11]) and (is_known or (may_be_unknown and value is None)):
            found[str(key)] = value
        if len(found) == MAX_LIST:
            break
    return found
