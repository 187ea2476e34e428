"""Readings of NVIDIA GPUs through pynvml (package nvidia-ml-py): called in a thread of its own, with the
memory gauge of a GPU, and the Xid events that mean that a GPU is faulty.

Fatal are, by NVIDIA's catalog (docs.nvidia.com/deploy/xid-errors, "Analyzing Xid Errors with the Xid
Catalog"), the Xids whose immediate action is to reset the GPU or to restart the machine, and 48 and 74, whose
workflows may end in that. Most others are caused by a run or follow from it (13, 31, 43, 45, 68: an
exception, a page fault, a process that ended), are contained in one process (94), or report a repair by the
driver (63, 92). Two are left out though the catalog asks for a reset: 109 (a context switch timed out), which
NVIDIA's device plugin for Kubernetes counts as an application's error, and 155, which links raise on their
way to sleep.

`FakeNvml` in the tests has the same functions as the library that is used here; a test holds both to its
signatures.
"""

from __future__ import annotations

import importlib
import queue
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

from gpu_host.local.device import (
    MIB,
    ExtraProcesses,
    Gauge,
    Memory,
    PortableGauge,
    no_processes,
    pss_mb,
    session_pids,
)

FATAL_XIDS: Mapping[int, str] = {
    46: "the GPU stopped processing",
    48: "a double-bit ECC error",
    62: "a micro-controller of the GPU halted",
    64: "a memory row could not be remapped",
    74: "an NVLink error",
    79: "the GPU has fallen off the bus",
    95: "an uncontained memory error",
    110: "a security fault",
    119: "the GPU system processor does not answer",
    120: "an error of the GPU system processor",
    136: "an NVLink could not be trained",
    140: "an ECC error that could not be handled",
    143: "the GPU could not be initialised",
    151: "a key rotation failed",
    156: "a reset is needed to retire a part of the GPU",
    158: "a fatal time-out",
}
ANY_INSTANCE = 0xFFFFFFFF
"""NVML's value for an event that belongs to no MIG instance."""
_MAX_EVENTS_PER_POLL = 256
T = TypeVar("T")
ANSWER_SECONDS = 5.0
START_SECONDS = 60.0
"""A driver that no process used before initialises every card first."""
THROTTLE_REASONS = {
    0x8: "hardware slowdown",
    0x20: "software thermal",
    0x40: "hardware thermal",
    0x80: "power brake",
}


def describe_fatal_xids(xids: Mapping[int, int]) -> str:
    """Return the fatal Xids among these in words; empty if there is none. xids: count by Xid."""
    return ", ".join(f"Xid {xid} ({FATAL_XIDS[xid]})" for xid in xids if xid in FATAL_XIDS)


class XidEvents:
    """Counts the Xid events of a card from now on, if the driver supports them.

    nv: `pynvml`. card: handle of the card; that of a MIG instance has no events. instance: count only events
    of this MIG instance and of none; None: all events. counts: counter to update."""

    def __init__(self, nv: Any, card: Any, instance: int | None, counts: Counter[int]) -> None:
        self._nv, self._instance, self._counts = nv, instance, counts
        self._set: Any = None
        try:
            self._set = nv.nvmlEventSetCreate()
            nv.nvmlDeviceRegisterEvents(card, nv.nvmlEventTypeXidCriticalError, self._set)
        except nv.NVMLError:  # an old card, a virtual machine or no permission: no events
            self.close()

    def poll(self) -> None:
        """Count the events that have arrived. Never blocks."""
        for _ in range(_MAX_EVENTS_PER_POLL if self._set is not None else 0):
            try:
                event = self._nv.nvmlEventSetWait_v2(self._set, 0)
            except self._nv.NVMLError:  # a time-out means no more events; other errors show in the readings
                return
            if event.eventType & self._nv.nvmlEventTypeXidCriticalError and self._is_ours(event):
                self._counts[int(event.eventData)] += 1

    def close(self) -> None:
        events, self._set = self._set, None
        if events is not None:
            with suppress(self._nv.NVMLError):
                self._nv.nvmlEventSetFree(events)

    def _is_ours(self, event: Any) -> bool:
        return self._instance is None or event.gpuInstanceId in (self._instance, ANY_INSTANCE)


class NvmlError(OSError):
    """The driver does not answer, or the device is lost."""


@dataclass(frozen=True, slots=True)
class GpuReading:
    """One reading of a GPU or a MIG instance; None where the card does not report a value.

    Units: MiB, percent, °C, watts. processes: MiB by pid (None: not reported). ecc_errors: uncorrected, since
    the driver was loaded. xids: count of each since the first reading. For a MIG instance all but memory and
    utilisation are values of its card.
    """

    total_mb: float
    used_mb: float
    utilisation: float | None = None
    temperature: float | None = None
    power: float | None = None
    ecc_errors: int | None = None
    throttled: tuple[str, ...] = ()
    processes: dict[int, float | None] = field(default_factory=dict)
    xids: dict[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Handles:
    """device: handle of a card or a MIG instance. card: handle of its card; for a card the same."""

    device: Any
    card: Any
    events: XidEvents


class Nvml:
    """The driver, for any thread; one instance per process. All methods raise NvmlError, also after a
    time-out.

    library: `pynvml`, or a fake of it. answer_seconds: limit of a call; start_seconds: limit of the first
    calls."""

    def __init__(
        self,
        library: Any = None,
        *,
        answer_seconds: float = ANSWER_SECONDS,
        start_seconds: float = START_SECONDS,
    ) -> None:
        self._answer_seconds, self._start_seconds = answer_seconds, start_seconds
        self._driver = DriverThread("nvml")
        self._known: dict[str, _Handles] = {}
        self._xids: defaultdict[str, Counter[int]] = defaultdict(Counter)
        try:
            self._nv: Any = library or importlib.import_module("pynvml")
            self._driver.call(self._nv.nvmlInit, start_seconds)
        except Exception as error:  # no library, no driver or no permission: there is no GPU to use
            raise NvmlError(f"no NVIDIA driver: {error}") from error

    def uuids(self) -> list[str]:
        """Return the UUIDs of GPUs by index, then of their MIG instances. Empty for a card that does not
        answer."""

        def query() -> list[str]:
            cards = list(self._cards())
            found = ["" if card is None else self._uuid_of(card) for card in cards]
            parts = [part for card in cards if card is not None for part in self._mig_instances(card)]
            return found + [uuid for uuid in map(self._uuid_of, parts) if uuid]

        return self._call(query, self._start_seconds)

    def has_device(self, uuid: str) -> bool:
        """Return True if a card or MIG instance with this whole UUID answers; other cards need not."""

        def query() -> bool:
            try:
                self._find(uuid)
            except self._nv.NVMLError:
                return False
            return True

        return self._call(query, self._start_seconds)

    def name(self, uuid: str) -> str:
        """Return the product name of a GPU."""
        return self._call(
            lambda: _text(self._nv.nvmlDeviceGetName(self._find(uuid).device)), self._start_seconds
        )

    def read(self, uuid: str) -> GpuReading:
        """Return a reading of a GPU."""
        return self._call(lambda: self._read(uuid), self._answer_seconds)

    # -- in the driver's thread -----------------------------------------------------------------------

    def _read(self, uuid: str) -> GpuReading:
        nv = self._nv
        try:
            known = self._find(uuid)
            known.events.poll()
            memory = nv.nvmlDeviceGetMemoryInfo(known.device)
        except nv.NVMLError as error:
            self._forget(uuid)  # once it answers again, it may have been reset
            raise NvmlError(f"{uuid}: {error}") from error
        both = (known.device, known.card)
        utilisation = self._query(nv.nvmlDeviceGetUtilizationRates, known.device)
        power = self._first_supported(nv.nvmlDeviceGetPowerUsage, both)
        throttled = self._first_supported(nv.nvmlDeviceGetCurrentClocksThrottleReasons, both) or 0
        processes = self._query(nv.nvmlDeviceGetComputeRunningProcesses, known.device) or []
        return GpuReading(
            total_mb=memory.total / MIB,
            used_mb=memory.used / MIB,
            utilisation=None if utilisation is None else float(utilisation.gpu),
            temperature=self._first_supported(nv.nvmlDeviceGetTemperature, both, nv.NVML_TEMPERATURE_GPU),
            power=None if power is None else power / 1000,
            ecc_errors=self._first_supported(
                nv.nvmlDeviceGetTotalEccErrors,
                both,
                nv.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
                nv.NVML_VOLATILE_ECC,
            ),
            throttled=tuple(word for bit, word in THROTTLE_REASONS.items() if throttled & bit),
            processes={
                one.pid: None if one.usedGpuMemory is None else one.usedGpuMemory / MIB for one in processes
            },
            xids=dict(self._xids[uuid]),
        )

    def _find(self, uuid: str) -> _Handles:
        """Return the handles, looked up once: a search by UUID may fail while any card is lost."""
        known = self._known.get(uuid)
        if known is None:
            device = self._search(uuid)
            card = self._query(self._nv.nvmlDeviceGetDeviceHandleFromMigDeviceHandle, device)
            instance = None if card is None else self._query(self._nv.nvmlDeviceGetGpuInstanceId, device)
            card = device if card is None else card
            events = XidEvents(self._nv, card, instance, self._xids[uuid])
            known = self._known[uuid] = _Handles(device, card, events)
        return known

    def _forget(self, uuid: str) -> None:
        known = self._known.pop(uuid, None)
        if known is not None:
            known.events.close()

    def _search(self, uuid: str) -> Any:
        try:
            return self._nv.nvmlDeviceGetHandleByUUID(uuid)
        except self._nv.NVMLError:
            for card in self._cards():
                for one in () if card is None else (card, *self._mig_instances(card)):
                    if self._uuid_of(one) == uuid:
                        return one
            raise

    def _cards(self) -> Iterator[Any]:
        """Yield handles by index; None for a card that does not answer or is not permitted."""
        for index in range(self._nv.nvmlDeviceGetCount()):
            yield self._query(self._nv.nvmlDeviceGetHandleByIndex, index)

    def _mig_instances(self, card: Any) -> list[Any]:
        """Return the handles of MIG instances; none if the card has no MIG."""
        nv = self._nv
        count = self._query(nv.nvmlDeviceGetMaxMigDeviceCount, card) or 0
        found = [self._query(nv.nvmlDeviceGetMigDeviceHandleByIndex, card, index) for index in range(count)]
        return [part for part in found if part is not None]

    def _uuid_of(self, handle: Any) -> str:
        return _text(self._query(self._nv.nvmlDeviceGetUUID, handle) or "")

    def _first_supported(self, function: Any, handles: tuple[Any, ...], *arguments: Any) -> Any:
        """Return the value of the first handle that supports the function, or None."""
        for handle in handles:
            value = self._query(function, handle, *arguments)
            if value is not None:
                return value
        return None

    def _query(self, function: Any, *arguments: Any) -> Any:
        """Return the function's value, or None if this card does not report it."""
        try:
            return function(*arguments)
        except self._nv.NVMLError:
            return None

    def _call(self, function: Callable[[], T], seconds: float) -> T:
        try:
            return self._driver.call(function, seconds)
        except DriverTimeout as error:
            raise NvmlError(str(error)) from error
        except self._nv.NVMLError as error:
            raise NvmlError(str(error)) from error


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


class DriverTimeout(Exception):
    """The driver did not answer in time."""

    def __init__(self) -> None:
        super().__init__("the driver does not answer")


class DriverThread:
    """The only thread that calls the driver, so that a driver that hangs blocks no other thread.

    A call into a driver that hangs can't be ended. The caller gives up after its time limit; until the driver
    answers again all other callers give up at once, so that a lock that is held during calls is held for one
    limit in all.
    """

    def __init__(self, name: str) -> None:
        self._calls: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._silent = False
        threading.Thread(target=self._answer, name=name, daemon=True).start()

    def call(self, function: Callable[[], T], seconds: float) -> T:
        """Return the function's value, or raise its error. Raises DriverTimeout after `seconds`."""
        with self._lock:
            if self._silent:
                raise DriverTimeout
        future: Future[T] = Future()
        self._calls.put((future, function))
        try:
            return future.result(seconds)
        except TimeoutError:
            with self._lock:
                if future.done():
                    return future.result()
                self._silent = True
                future.cancel()  # a call that waits behind another is not made any more
            raise DriverTimeout from None

    def _answer(self) -> None:
        while True:
            future, function = self._calls.get()
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(function())
                except BaseException as error:
                    future.set_exception(error)
            with self._lock:
                self._silent = False
            del future, function  # keep no reference until the next call


class VramGauge(Gauge):
    """The memory of a GPU.

    In a container the driver may not list our processes, and some drivers list them without their memory:
    then all memory in use before our first process counts as that of others."""

    def __init__(self, nvml: Nvml, uuid: str, extra: ExtraProcesses = no_processes) -> None:
        """extra: processes that count as ours beside those of the session."""
        self._nvml, self._uuid, self._extra = nvml, uuid, extra
        self._before = nvml.read(uuid).used_mb

    def read(self, session: int | None) -> Memory:
        """See `Gauge.read`."""
        reading = self._nvml.read(self._uuid)
        extra, within = set(self._extra()), set(() if session is None else session_pids(session))
        ours = extra | within
        named = {pid: held for pid, held in reading.processes.items() if pid in ours and held is not None}
        own = sum(named.values())
        unreported = any(reading.processes.get(pid, 0.0) is None for pid in ours)
        if session is not None and (unreported or not named):
            own = max(own, reading.used_mb - self._before)
        outside_session = sum(held for pid, held in named.items() if pid not in within)
        return Memory(reading.total_mb, own, max(0.0, reading.used_mb - own), outside_session)


def ram_of(session: int | None) -> float:
    """Return the MiB of main memory that the processes of a session use."""
    if session is None:
        return 0.0
    try:
        return sum(pss_mb(pid) for pid in session_pids(session))
    except OSError:  # no /proc here
        return PortableGauge().read(session).own
