"""The functions of `pynvml` that are used, over cards of the test's own."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

MIB = 1024 * 1024


class NVMLError(Exception):
    pass


@dataclass
class Card:
    uuid: str
    total_mb: int = 16_000
    used_mb: int = 1_000
    utilisation: int | None = 0
    temperature: int = 40
    power_mw: int = 60_000
    ecc: int | None = 0
    throttled: int = 0
    processes: list[tuple[int, int | None]] = field(default_factory=list)
    parts: list[Card] = field(default_factory=list)
    lost: bool = False


class FakeNvml:
    """Handles are the cards."""

    NVMLError = NVMLError
    NVML_TEMPERATURE_GPU = 0
    NVML_MEMORY_ERROR_TYPE_UNCORRECTED = 1
    NVML_VOLATILE_ECC = 0

    def __init__(self, *cards: Card) -> None:
        self.cards = list(cards)

    def nvmlInit(self) -> None:
        if not self.cards:
            raise NVMLError("Driver Not Loaded")

    def nvmlDeviceGetCount(self) -> int:
        return len(self.cards)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Card:
        return self.cards[index]

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> Card:
        for card in self.cards:
            for one in (card, *card.parts):
                if one.uuid == uuid:
                    return self._there(one)
        raise NVMLError("Not Found")

    def nvmlDeviceGetUUID(self, handle: Card) -> str:
        return handle.uuid

    def nvmlDeviceGetName(self, handle: Card) -> str:
        return "Fake GPU"

    def nvmlDeviceGetMemoryInfo(self, handle: Card, version: Any = None) -> Any:
        self._there(handle)
        return SimpleNamespace(total=handle.total_mb * MIB, used=handle.used_mb * MIB)

    def nvmlDeviceGetUtilizationRates(self, handle: Card) -> Any:
        return SimpleNamespace(gpu=self._told(handle.utilisation), memory=0)

    def nvmlDeviceGetTemperature(self, handle: Card, sensor: int) -> int:
        return handle.temperature

    def nvmlDeviceGetPowerUsage(self, handle: Card) -> int:
        return handle.power_mw

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: Card) -> int:
        return handle.throttled

    def nvmlDeviceGetTotalEccErrors(self, handle: Card, errorType: int, counterType: int) -> int:
        return int(self._told(handle.ecc))

    def nvmlDeviceGetComputeRunningProcesses(self, handle: Card) -> list[Any]:
        return [
            SimpleNamespace(pid=pid, usedGpuMemory=None if mb is None else mb * MIB)
            for pid, mb in handle.processes
        ]

    def nvmlDeviceGetMaxMigDeviceCount(self, device: Card) -> int:
        return len(device.parts) + 1

    def nvmlDeviceGetMigDeviceHandleByIndex(self, device: Card, index: int) -> Card:
        if index >= len(device.parts):
            raise NVMLError("Not Found")
        return device.parts[index]

    def _there(self, card: Card) -> Card:
        if card.lost:
            raise NVMLError("GPU is lost")
        return card

    def _told(self, value: Any) -> Any:
        if value is None:
            raise NVMLError("Not Supported")
        return value
