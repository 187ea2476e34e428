"""Records which functions of the repository a process enters. Python imports this file when it starts.

Only the processes that a job passes are traced: a profile hook makes the start of a process slower.

`TRACE_FOLDER` holds a file `phase`, whose one byte numbers what is traced (0: nothing), and a file `entered`,
which gets a line (see `Entry` in traced_jobs.py) for each function that a thread enters for the first time in
a phase.
"""

from __future__ import annotations

import mmap
import os
import sys
import threading
import time
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

PHASES = 256
TRACED = ("gpu_worker", "callbacks", "dispatcher_project.web")
"""Words of their command lines; a list of queues counts as several."""


class Tracer:
    """folder: TRACE_FOLDER. root: of the repository; files of its virtual environment are left out."""

    def __init__(self, folder: str, root: str) -> None:
        self._root, self._libraries = root + os.sep, os.path.join(root, ".venv", "")
        with open(os.path.join(folder, "phase"), "rb") as file:
            self._phase = mmap.mmap(file.fileno(), 1, access=mmap.ACCESS_READ)
        self._lines = os.open(os.path.join(folder, "entered"), os.O_WRONLY | os.O_APPEND)
        self._seen: list[set[tuple[int, CodeType]]] = [set() for _ in range(PHASES)]

    def enter(self, frame: FrameType, event: str, _: Any) -> None:
        """Called by the interpreter at each call and return."""
        phase = self._phase[0]
        if not phase or event != "call":
            return
        key = threading.get_ident(), frame.f_code
        if key in self._seen[phase]:
            return
        self._seen[phase].add(key)
        path, function = frame.f_code.co_filename, frame.f_code.co_qualname
        if path.startswith(self._root) and not path.startswith(self._libraries) and function != "<module>":
            thread = threading.current_thread().name
            row = (time.monotonic_ns(), phase, os.getpid(), thread, path.removeprefix(self._root), function)
            os.write(self._lines, ("\t".join(map(str, row)) + "\n").encode())


def _trace_main_thread(tracer: Tracer, start: Callable[[threading.Thread], None]) -> Any:
    """From its first start of a thread on: until then it imports, which a profile hook makes much slower."""

    def start_traced(thread: threading.Thread) -> None:
        threading.Thread.start = start  # type: ignore[method-assign]
        sys.setprofile(tracer.enter)
        start(thread)

    return start_traced


def begin() -> None:
    """Trace this process if a job passes it. Also called in each process that
    `tests.support.system.forking_up` forks: Python does not start there."""
    folder = os.environ.get("TRACE_FOLDER")
    if folder and any(part in TRACED for word in sys.orig_argv for part in word.split(",")):
        tracer = Tracer(folder, os.environ["TRACE_ROOT"])
        threading.setprofile(tracer.enter)
        threading.Thread.start = _trace_main_thread(tracer, threading.Thread.start)  # type: ignore[method-assign]


begin()
