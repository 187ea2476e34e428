"""What the NVIDIA driver says, by pynvml (package nvidia-ml-py), behind one small interface: asked in a
thread of its own, with a GPU's memory as measured by it, and the Xid events that mean that a GPU is sick.

Those are, by NVIDIA's catalog (docs.nvidia.com/deploy/xid-errors, "Analyzing Xid Errors with the Xid
Catalog"), the ones whose immediate action is to reset the GPU or to restart the machine, and 48 and 74, whose
workflows may end in that. Most others are a run's own doing or follow from it (13, 31, 43, 45, 68: an
exception, a page fault, a process that ended), are contained in the process that had them (94), or tell what
the driver mended (63, 92). Two are left out though the catalog asks for a reset: 109 (a context switch timed
out), which NVIDIA's own device plugin for Kubernetes counts as an application's error, and 155, which links
raise on their way to sleep.

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

from gpu_host.local.device import MIB, Also, Gauge, Memory, PortableGauge, held_by, members, no_processes

SICK: Mapping[int, str] = {
    46: "it stopped processing",
    48: "a double-bit ECC error",
    62: "a micro-controller of it halted",
    64: "a row of its memory could not be remapped",
    74: "an NVLink error",
    79: "it has fallen off the bus",
    95: "an uncontained memory error",
    110: "a security fault",
    119: "its system processor does not answer",
    120: "an error of its system processor",
    136: "an NVLink could not be trained",
    140: "an ECC error that could not be handled",
    143: "it could not be initialised",
    151: "a key rotation failed",
    156: "a part of it is to be retired by a reset",
    158: "a fatal time-out",
}
ANY_INSTANCE = 0xFFFFFFFF
"""NVML's word for an event that is of no one MIG instance."""
_AT_ONCE = 256
T = TypeVar("T")
ANSWER_SECONDS = 5.0
START_SECONDS = 60.0
"""A driver that nobody used before sets up every card first."""
THROTTLES = {
    0x8: "hardware slowdown",
    0x20: "software thermal",
    0x40: "hardware thermal",
    0x80: "power brake",
}


def sick_by(xids: Mapping[int, int]) -> str:
    """In words; empty: by none of them."""
    return ", ".join(f"Xid {xid} ({SICK[xid]})" for xid in xids if xid in SICK)


class XidEvents:
    """Counts a card's events from now on, where it tells of them. nv: `pynvml`. card: a handle; that of a MIG
    instance tells of none. instance: only its events and those of no one instance; None: all. counts: where
    they are counted."""

    def __init__(self, nv: Any, card: Any, instance: int | None, counts: Counter[int]) -> None:
        self._nv, self._instance, self._counts = nv, instance, counts
        self._set: Any = None
        try:
            self._set = nv.nvmlEventSetCreate()
            nv.nvmlDeviceRegisterEvents(card, nv.nvmlEventTypeXidCriticalError, self._set)
        except nv.NVMLError:  # an old card, a guest, no permission: it does not tell
            self.close()

    def look(self) -> None:
        """Never waits."""
        for _ in range(_AT_ONCE if self._set is not None else 0):
            try:
                event = self._nv.nvmlEventSetWait_v2(self._set, 0)
            except self._nv.NVMLError:  # a time-out: there is no more; else the readings tell what is wrong
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
    """MiB, percent, °C, watts; None where the card does not tell. processes: MiB by pid (None: it does not
    tell). ecc_errors: uncorrected since the driver was loaded. xids: how often each came since the first
    reading. Of a MIG instance, what only its card tells is the card's (all but memory and utilisation)."""

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
    """device: of a card or a MIG instance. card: of its card, the same but for an instance."""

    device: Any
    card: Any
    events: XidEvents


class Nvml:
    """One per process; from any thread. library: `pynvml`, or a fake of it. Raises NvmlError, also when the
    driver did not answer in time."""

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
            self._driver.ask(self._nv.nvmlInit, start_seconds)
        except Exception as error:  # no library, no driver, no permission: all of it is "no GPU here"
            raise NvmlError(f"no NVIDIA driver: {error}") from error

    def uuids(self) -> list[str]:
        """GPUs by index, then their MIG instances. A card that can't be asked keeps its index: its place is
        empty."""

        def ask() -> list[str]:
            cards = list(self._cards())
            found = ["" if card is None else self._uuid_of(card) for card in cards]
            parts = [part for card in cards if card is not None for part in self._parts(card)]
            return found + [uuid for uuid in map(self._uuid_of, parts) if uuid]

        return self._asked(ask, self._start_seconds)

    def knows(self, uuid: str) -> bool:
        """By its whole UUID, of a card or a MIG instance: others need not answer."""

        def ask() -> bool:
            try:
                self._find(uuid)
            except self._nv.NVMLError:
                return False
            return True

        return self._asked(ask, self._start_seconds)

    def name(self, uuid: str) -> str:
        return self._asked(
            lambda: _text(self._nv.nvmlDeviceGetName(self._find(uuid).device)), self._start_seconds
        )

    def read(self, uuid: str) -> GpuReading:
        return self._asked(lambda: self._read(uuid), self._answer_seconds)

    # -- in the driver's thread -----------------------------------------------------------------------

    def _read(self, uuid: str) -> GpuReading:
        nv = self._nv
        try:
            known = self._find(uuid)
            known.events.look()
            memory = nv.nvmlDeviceGetMemoryInfo(known.device)
        except nv.NVMLError as error:
            self._forget(uuid)  # when it answers again, it may have been reset
            raise NvmlError(f"{uuid}: {error}") from error
        both = (known.device, known.card)
        utilisation = self._ask(nv.nvmlDeviceGetUtilizationRates, known.device)
        power = self._first(nv.nvmlDeviceGetPowerUsage, both)
        throttled = self._first(nv.nvmlDeviceGetCurrentClocksThrottleReasons, both) or 0
        processes = self._ask(nv.nvmlDeviceGetComputeRunningProcesses, known.device) or []
        return GpuReading(
            total_mb=memory.total / MIB,
            used_mb=memory.used / MIB,
            utilisation=None if utilisation is None else float(utilisation.gpu),
            temperature=self._first(nv.nvmlDeviceGetTemperature, both, nv.NVML_TEMPERATURE_GPU),
            power=None if power is None else power / 1000,
            ecc_errors=self._first(
                nv.nvmlDeviceGetTotalEccErrors,
                both,
                nv.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
                nv.NVML_VOLATILE_ECC,
            ),
            throttled=tuple(word for bit, word in THROTTLES.items() if throttled & bit),
            processes={
                one.pid: None if one.usedGpuMemory is None else one.usedGpuMemory / MIB for one in processes
            },
            xids=dict(self._xids[uuid]),
        )

    def _find(self, uuid: str) -> _Handles:
        """Looked for once: a search by UUID may fail where any card of the machine is lost."""
        known = self._known.get(uuid)
        if known is None:
            device = self._search(uuid)
            card = self._ask(self._nv.nvmlDeviceGetDeviceHandleFromMigDeviceHandle, device)
            instance = None if card is None else self._ask(self._nv.nvmlDeviceGetGpuInstanceId, device)
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
                for one in () if card is None else (card, *self._parts(card)):
                    if self._uuid_of(one) == uuid:
                        return one
            raise

    def _cards(self) -> Iterator[Any]:
        """By index; None for one that can't be asked, or is not ours to ask."""
        for index in range(self._nv.nvmlDeviceGetCount()):
            yield self._ask(self._nv.nvmlDeviceGetHandleByIndex, index)

    def _parts(self, card: Any) -> list[Any]:
        """MIG instances; none where the card knows no such thing."""
        nv = self._nv
        count = self._ask(nv.nvmlDeviceGetMaxMigDeviceCount, card) or 0
        found = [self._ask(nv.nvmlDeviceGetMigDeviceHandleByIndex, card, index) for index in range(count)]
        return [part for part in found if part is not None]

    def _uuid_of(self, handle: Any) -> str:
        return _text(self._ask(self._nv.nvmlDeviceGetUUID, handle) or "")

    def _first(self, function: Any, handles: tuple[Any, ...], *arguments: Any) -> Any:
        """What the first of them tells that does."""
        for handle in handles:
            told = self._ask(function, handle, *arguments)
            if told is not None:
                return told
        return None

    def _ask(self, function: Any, *arguments: Any) -> Any:
        """None: this card does not tell."""
        try:
            return function(*arguments)
        except self._nv.NVMLError:
            return None

    def _asked(self, question: Callable[[], T], seconds: float) -> T:
        try:
            return self._driver.ask(question, seconds)
        except Unanswered as error:
            raise NvmlError(str(error)) from error
        except self._nv.NVMLError as error:
            raise NvmlError(str(error)) from error


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


class Unanswered(Exception):
    def __init__(self) -> None:
        super().__init__("the driver does not answer")


class DriverThread:
    """The one thread that asks the driver: a driver that hangs holds it, and nobody else.

    A call into a driver that hangs can't be ended. Whoever waits for its answer gives up after a bound; until
    the driver answers again everybody else gives up at once, so that a lock that is held while asking is held
    for one bound in all."""

    def __init__(self, name: str) -> None:
        self._asked: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._silent = False
        threading.Thread(target=self._answer, name=name, daemon=True).start()

    def ask(self, question: Callable[[], T], seconds: float) -> T:
        """Its answer, or what it raises. Raises Unanswered after so many seconds."""
        with self._lock:
            if self._silent:
                raise Unanswered
        future: Future[T] = Future()
        self._asked.put((future, question))
        try:
            return future.result(seconds)
        except TimeoutError:
            with self._lock:
                if future.done():
                    return future.result()
                self._silent = True
                future.cancel()  # one that waits behind another is not asked any more
            raise Unanswered from None

    def _answer(self) -> None:
        while True:
            future, question = self._asked.get()
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(question())
                except BaseException as error:
                    future.set_exception(error)
            with self._lock:
                self._silent = False
            del future, question  # what was answered is not kept until the next question


class VramGauge(Gauge):
    """The memory of a GPU, whoever holds it. In a container the driver may not name our processes, and some
    drivers name them without their memory: then what was held before our first process is others'."""

    def __init__(self, nvml: Nvml, uuid: str, also: Also = no_processes) -> None:
        """also: processes that are ours beside the session's."""
        self._nvml, self._uuid, self._also = nvml, uuid, also
        self._before = nvml.read(uuid).used_mb

    def read(self, session: int | None) -> Memory:
        reading = self._nvml.read(self._uuid)
        also, within = set(self._also()), set(() if session is None else members(session))
        ours = also | within
        named = {pid: held for pid, held in reading.processes.items() if pid in ours and held is not None}
        own = sum(named.values())
        untold = any(reading.processes.get(pid, 0.0) is None for pid in ours)
        if session is not None and (untold or not named):
            own = max(own, reading.used_mb - self._before)
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
