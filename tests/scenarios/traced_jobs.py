"""The files that a job enters on its way, by a tracer in every process of a running dispatcher."""

from __future__ import annotations

import contextlib
import mmap
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from dispatcher_project.supervisor.data_folder import ROOT
from tests.support.servers.callback_receiver import Receiver
from tests.support.system.running import System
from tests.support.waiting import wait_for

PROCESSES = ("web", "gpu_worker", "callbacks")
"""Those that a job passes."""
WARM_UP, JOBS = 3, 4
IDLE_SECONDS = 2.5
"""Between two jobs: longer than any cache that they could share, and than any period of the housekeeping."""
SETTLE_SECONDS = 0.7
"""After the callback arrived: its row is marked delivered, the slot's lease is removed."""
_UNTRACED, _IDLE, _FIRST_JOB = 0, 1, 2
_NOT_PRODUCT = ("tests/", "benchmarks/", "verification/")


@dataclass(frozen=True, slots=True)
class Entry:
    """The first time that a thread entered a function in a phase. thread: its name, with # for numbers."""

    at: int
    phase: int
    pid: int
    thread: str
    file: str
    function: str

    @classmethod
    def read(cls, line: str) -> Entry:
        at, phase, pid, thread, file, function = line.rstrip("\n").split("\t")
        return cls(int(at), int(phase), int(pid), re.sub(r"\d+", "#", thread), file, function)


class Trace:
    """The `phase` and `entered` files of tracer/sitecustomize.py."""

    def __init__(self, folder: Path) -> None:
        self._entered = folder / "entered"
        self._entered.touch()
        phase = folder / "phase"
        phase.write_bytes(bytes([_UNTRACED]))
        with phase.open("r+b") as file:
            self._phase = mmap.mmap(file.fileno(), 1)
        self.environment = {
            "TRACE_FOLDER": str(folder),
            "TRACE_ROOT": str(ROOT),
            "PYTHONPATH": str(Path(__file__).with_name("tracer")),
        }

    @contextlib.contextmanager
    def phase(self, number: int) -> Iterator[None]:
        self._phase[0] = number
        yield
        self._phase[0] = _UNTRACED

    def entries(self) -> list[Entry]:
        return [Entry.read(line) for line in self._entered.read_text().splitlines()]


@dataclass(frozen=True, slots=True)
class Stops:
    """The product files that jobs enter in one process. always: those that every traced job entered, in the
    order of the first entries. at_times: those that any of them entered."""

    always: list[str]
    at_times: set[str]


def trace_jobs(folder: Path) -> dict[str, Stops]:
    """Run jobs one by one through a traced system; return their stops by process.

    A file counts where a job enters one of its functions in a thread that does not enter that function while
    the system is idle: so a sweep is left out, and a module that a sweep and a job share is not.
    """
    trace = Trace(folder)
    with _system(folder, trace) as system, contextlib.closing(Receiver()) as receiver:
        receiver.open()
        keys = dict(
            line.split(": ") for line in system.manage("create_key", "--tenant", "traced").splitlines()
        )
        client, secret = system.client(keys["api key"]), keys["webhook secret"]
        system.add_server("traced")
        for number in range(WARM_UP + JOBS):
            if number >= WARM_UP:
                with trace.phase(_IDLE):
                    time.sleep(IDLE_SECONDS)
            with trace.phase(number - WARM_UP + _FIRST_JOB if number >= WARM_UP else _UNTRACED):
                job_id = client.submit("traced", {"n": number}, callback_url=receiver.url)
                wait_for(lambda job=job_id: job in receiver.job_ids(secret), what="the callback")  # type: ignore[misc]
                time.sleep(SETTLE_SECONDS)
        pids = {process: system.pid(process) for process in PROCESSES}
    entries = [entry for entry in trace.entries() if not entry.file.startswith(_NOT_PRODUCT)]
    return {process: _stops_of([one for one in entries if one.pid == pid]) for process, pid in pids.items()}


@contextlib.contextmanager
def _system(folder: Path, trace: Trace) -> Iterator[System]:
    system = System(folder / "var", environment=trace.environment)
    try:
        yield system
    finally:
        system.stop()


def _stops_of(entries: list[Entry]) -> Stops:
    idle = {(entry.thread, entry.function, entry.file) for entry in entries if entry.phase == _IDLE}
    functions = [set[tuple[str, str]]() for _ in range(JOBS)]
    first = dict[str, int]()
    for entry in entries:
        number = entry.phase - _FIRST_JOB
        if number >= 0 and (entry.thread, entry.function, entry.file) not in idle:
            functions[number].add((entry.file, entry.function))
            if number == JOBS - 1:
                first.setdefault(entry.file, entry.at)
    always = {file for file, _ in set.intersection(*functions)}
    return Stops(sorted(always, key=first.__getitem__), {file for file, _ in set.union(*functions)})
