"""What the NVIDIA driver says, by pynvml (package nvidia-ml-py), behind one small interface.

`FakeNvml` in the tests has the same functions as the library that is used here; a test holds both to its
signatures.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass, field
from typing import Any

from gpus.local.memory import MIB, Also, Gauge, Memory, PortableGauge, held_by, members, nobody

THROTTLES = {
    0x8: "hardware slowdown",
    0x20: "software thermal",
    0x40: "hardware thermal",
    0x80: "power brake",
}


class NvmlError(OSError):
    """The driver does not answer, or the device is lost."""


@dataclass(frozen=True, slots=True)
class GpuReading:
    """MiB, percent, °C, watts; None where the card does not tell. processes: MiB by pid (None: it does not
    tell). ecc_errors: uncorrected since the driver was loaded."""

    total_mb: float
    used_mb: float
    utilisation: float | None = None
    temperature: float | None = None
    power: float | None = None
    ecc_errors: int | None = None
    throttled: tuple[str, ...] = ()
    processes: dict[int, float | None] = field(default_factory=dict)


class Nvml:
    """One per process. library: `pynvml`, or a fake of it. Raises NvmlError."""

    def __init__(self, library: Any = None) -> None:
        try:
            self._nv: Any = library or importlib.import_module("pynvml")
            self._nv.nvmlInit()
        except Exception as error:  # no library, no driver, no permission: all of it is "no GPU here"
            raise NvmlError(f"no NVIDIA driver: {error}") from error

    def uuids(self) -> list[str]:
        """GPUs by index, then their MIG instances."""
        try:
            gpus = [
                self._nv.nvmlDeviceGetHandleByIndex(index) for index in range(self._nv.nvmlDeviceGetCount())
            ]
            found = [_text(self._nv.nvmlDeviceGetUUID(gpu)) for gpu in gpus]
            for gpu in gpus:
                found += [_text(self._nv.nvmlDeviceGetUUID(part)) for part in self._parts(gpu)]
        except self._nv.NVMLError as error:
            raise NvmlError(str(error)) from error
        return found

    def name(self, uuid: str) -> str:
        try:
            return _text(self._nv.nvmlDeviceGetName(self._handle(uuid)))
        except self._nv.NVMLError as error:
            raise NvmlError(str(error)) from error

    def read(self, uuid: str) -> GpuReading:
        nv = self._nv
        try:
            handle = self._handle(uuid)
            memory = nv.nvmlDeviceGetMemoryInfo(handle)
        except nv.NVMLError as error:
            raise NvmlError(f"{uuid}: {error}") from error
        utilisation = self._ask(nv.nvmlDeviceGetUtilizationRates, handle)
        power = self._ask(nv.nvmlDeviceGetPowerUsage, handle)
        throttled = self._ask(nv.nvmlDeviceGetCurrentClocksThrottleReasons, handle) or 0
        processes = self._ask(nv.nvmlDeviceGetComputeRunningProcesses, handle) or []
        return GpuReading(
            total_mb=memory.total / MIB,
            used_mb=memory.used / MIB,
            utilisation=None if utilisation is None else float(utilisation.gpu),
            temperature=self._ask(nv.nvmlDeviceGetTemperature, handle, nv.NVML_TEMPERATURE_GPU),
            power=None if power is None else power / 1000,
            ecc_errors=self._ask(
                nv.nvmlDeviceGetTotalEccErrors,
                handle,
                nv.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
                nv.NVML_VOLATILE_ECC,
            ),
            throttled=tuple(word for bit, word in THROTTLES.items() if throttled & bit),
            processes={
                one.pid: None if one.usedGpuMemory is None else one.usedGpuMemory / MIB for one in processes
            },
        )

    def _handle(self, uuid: str) -> Any:
        return self._nv.nvmlDeviceGetHandleByUUID(uuid)

    def _parts(self, gpu: Any) -> list[Any]:
        """MIG instances; none where the card knows no such thing."""
        nv = self._nv
        count = self._ask(nv.nvmlDeviceGetMaxMigDeviceCount, gpu) or 0
        found = [self._ask(nv.nvmlDeviceGetMigDeviceHandleByIndex, gpu, index) for index in range(count)]
        return [part for part in found if part is not None]

    def _ask(self, function: Any, *arguments: Any) -> Any:
        """None: this card does not tell."""
        try:
            return function(*arguments)
        except self._nv.NVMLError:
            return None


class VramGauge(Gauge):
    """The memory of a GPU, whoever holds it. In a container the driver may not name our processes: then what
    was held before our first process is others'."""

    def __init__(self, nvml: Nvml, uuid: str, also: Also = nobody) -> None:
        """also: processes that are ours beside the session's."""
        self._nvml, self._uuid, self._also = nvml, uuid, also
        self._before = nvml.read(uuid).used_mb

    def read(self, session: int | None) -> Memory:
        reading = self._nvml.read(self._uuid)
        also, within = set(self._also()), set(() if session is None else members(session))
        ours = also | within
        named = {pid: held for pid, held in reading.processes.items() if pid in ours and held is not None}
        if session is None and not named:
            own = 0.0
        elif named or (ours & set(reading.processes)):
            own = sum(named.values())
        else:
            own = max(0.0, reading.used_mb - self._before) if reading.used_mb > self._before else 0.0
        beside = sum(held for pid, held in named.items() if pid not in within)
        return Memory(reading.total_mb, own, max(0.0, reading.used_mb - own), beside)


def ram_of(session: int | None) -> float:
    """MiB of main memory that a model process holds."""
    if session is None:
        return 0.0
    try:
        return sum(held_by(pid) for pid in members(session))
    except OSError:  # no /proc here
        return PortableGauge().read(session).own


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
