"""The functions of `pynvml` that are used, over cards of the test's own."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

MIB = 1024 * 1024
HANGS_SECONDS = 20.0
"""A driver that hangs does so for long, but not for ever: a test that waits for it fails, and ends."""


class NVMLError(Exception):
    pass


@dataclass
class Card:
    uuid: str
    total_mb: int = 16_000
    used_mb: int = 1_000
    utilisation: int | None = 0
    temperature: int | None = 40
    power_mw: int | None = 60_000
    ecc: int | None = 0
    throttled: int = 0
    processes: list[tuple[int, int | None]] = field(default_factory=list)
    parts: list[Card] = field(default_factory=list)
    lost: bool = False
    instance: int = 0
    tells_xids: bool = True
    xids: list[tuple[int, int]] = field(default_factory=list)
    """The events that no wait has returned yet, each with its MIG instance."""


class FakeNvml:
    """Handles are the cards, and event sets are lists of them. answers: cleared for a driver that hangs."""

    NVMLError = NVMLError
    NVML_TEMPERATURE_GPU = 0
    NVML_MEMORY_ERROR_TYPE_UNCORRECTED = 1
    NVML_VOLATILE_ECC = 0
    nvmlEventTypeXidCriticalError = 8

    def __init__(self, *cards: Card) -> None:
        self.cards = list(cards)
        self.answers = threading.Event()
        self.answers.set()
        self.asked = self.event_sets = 0

    def nvmlInit(self) -> None:
        if not self.cards:
            raise NVMLError("Driver Not Loaded")

    def nvmlDeviceGetCount(self) -> int:
        return len(self.cards)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Card:
        return self._there(self.cards[index])

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> Card:
        """As the real one may: a lost card is in the way of a search for another."""
        for card in self.cards:
            self._there(card)
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
        self.asked += 1
        self.answers.wait(HANGS_SECONDS)
        self._there(handle)
        return SimpleNamespace(total=handle.total_mb * MIB, used=handle.used_mb * MIB)

    def nvmlDeviceGetUtilizationRates(self, handle: Card) -> Any:
        return SimpleNamespace(gpu=self._told(handle.utilisation), memory=0)

    def nvmlDeviceGetTemperature(self, handle: Card, sensor: int) -> int:
        return int(self._told(handle.temperature))

    def nvmlDeviceGetPowerUsage(self, handle: Card) -> int:
        return int(self._told(handle.power_mw))

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

    def nvmlDeviceGetDeviceHandleFromMigDeviceHandle(self, migDevice: Card) -> Card:
        for card in self.cards:
            if any(part is migDevice for part in card.parts):
                return card
        raise NVMLError("Invalid Argument")

    def nvmlDeviceGetGpuInstanceId(self, device: Card) -> int:
        return device.instance

    def nvmlEventSetCreate(self) -> list[Card]:
        self.event_sets += 1
        return []

    def nvmlEventSetFree(self, eventSet: list[Card]) -> None:
        self.event_sets -= 1
        for card in eventSet:
            card.xids.clear()

    def nvmlDeviceRegisterEvents(self, handle: Card, eventTypes: int, eventSet: list[Card]) -> None:
        is_part = any(handle is part for card in self.cards for part in card.parts)
        if is_part or not handle.tells_xids or eventTypes != self.nvmlEventTypeXidCriticalError:
            raise NVMLError("Not Supported")
        eventSet.append(handle)

    def nvmlEventSetWait_v2(self, eventSet: list[Card], timeoutms: int) -> Any:
        assert timeoutms == 0
        for card in eventSet:
            if card.xids:
                xid, instance = card.xids.pop(0)
                return SimpleNamespace(
                    device=card, eventType=8, eventData=xid, gpuInstanceId=instance, computeInstanceId=0
                )
        raise NVMLError("Timeout")

    def _there(self, card: Card) -> Card:
        if card.lost:
            raise NVMLError("GPU is lost")
        return card

    def _told(self, value: Any) -> Any:
        if value is None:
            raise NVMLError("Not Supported")
        return value
