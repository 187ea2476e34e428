"""The reference GPU server: serves Python functions over the protocol of docs/reference/gpu_protocol.md.

node = Node(NodeConfig(handler="package.module:run", slots=2, port=9001))
node.start()
"""

from __future__ import annotations

import ctypes
import os
import queue
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

from gpu_host.local.output import make_own_folder, remove_old
from gpu_host.node.admission import Admission
from gpu_host.node.config import NodeConfig
from gpu_host.node.faults import FaultPlan
from gpu_host.node.handlers import Handler, capture_output, load_handlers
from gpu_host.node.http_server import HttpServer
from gpu_host.node.routes import Routes
from gpu_host.node.runs import Counters, RunLog
from gpus.protocol import NODE

_JOIN_SECONDS = 2.0
_FETCH_SECONDS = 10.0
"""When the node stops, it waits at most this long for a poll of an ended run."""


def _do_nothing() -> None:
    return None


class Node:
    """A GPU server. `start` opens its port, `stop` ends everything; both from any thread. Raises ConfigError,
    OSError."""

    def __init__(self, config: NodeConfig) -> None:
        self.config = config
        self._end_capture = capture_output()  # before the models are imported: they may keep the streams
        try:
            self._handlers: dict[str, Handler] = {
                handler.model: handler
                for model, path in (config.handlers or {"": config.handler}).items()
                for handler in load_handlers(path, model=model)
            }
        except BaseException:
            self._end_capture()
            raise
        self.simulates = any(handler.simulates for handler in self._handlers.values())
        self.faults = FaultPlan()
        self.counters = Counters()
        self.log = RunLog(config.log_runs, config.log_file)
        self._output_root: Path | None = None
        self._tidying: threading.Thread | None = None
        self.admission = self._new_admission()
        self.stopping = threading.Event()
        self._reopening: threading.Timer | None = None
        self._http = HttpServer(
            config.host,
            config.port,
            Routes(self).answer,
            max_body_bytes=config.max_body_bytes,
            max_connections=config.max_connections,
            token=config.token,
            times=config.request_times,
            any_name=config.open_to_all,
        )

    @property
    def models(self) -> list[str]:
        return list(self._handlers)

    @property
    def port(self) -> int:
        """The port; once started never 0."""
        return self._http.port

    @property
    def url(self) -> str:
        """``http://host:port``"""
        host = f"[{self.config.host}]" if ":" in self.config.host else self.config.host
        return f"http://{host}:{self.port}"

    def handler_for(self, first_segment: str) -> Handler | None:
        """Return the handler for the first segment of a path; a single handler without a name serves every
        path."""
        return self._handlers.get("") or self._handlers.get(first_segment)

    def start(self) -> None:
        """Load the models, then open the port: callers find them ready."""
        for handler in self._handlers.values():
            handler.load()
        self._output_root = self.admission.output_root = make_own_folder("gpu-node-runs")
        try:
            self._http.open()
        except OSError:
            shutil.rmtree(self._output_root, ignore_errors=True)
            raise
        self.log.boot(self.admission.boot_id)
        self._tidying = threading.Thread(target=self._tidy, args=(self._output_root,), daemon=True)
        self._tidying.start()

    def stop(self) -> None:
        """Stop at once: cancel runs, cut connections, unload models. Safe to call twice."""
        self.stopping.set()
        if self._reopening is not None:
            self._reopening.cancel()
            self._reopening.join()
        self._http.close()
        self.admission.abandon()
        self._http.cut()
        self._http.join(_JOIN_SECONDS)
        loaded, self._handlers = self._handlers, {}
        for handler in loaded.values():
            handler.unload()
        self._end_capture()
        self._end_capture = _do_nothing
        if self._tidying is not None and self._output_root is not None:
            self._tidying.join(_JOIN_SECONDS)
            shutil.rmtree(self._output_root, ignore_errors=True)

    def drain(self, grace_seconds: float) -> bool:
        """Admit no more runs; wait for the runs, and until their results were fetched. True: all were."""
        self.admission.drain()
        until = time.monotonic() + grace_seconds
        while not self.admission.is_done(recent_seconds=_FETCH_SECONDS):
            if time.monotonic() >= until:
                return False
            self.stopping.wait(0.05)
        return True

    def restart(self, *, down_seconds: float = 0.0) -> None:
        """Simulate a restart of the machine: all runs and connections are dropped, and `boot_id` changes.

        `GET /runs` and the counters stay, for tests. down_seconds: how long the port stays closed."""
        if down_seconds > 0:
            self._http.close()
        old, self.admission = self.admission, self._new_admission()
        old.abandon()
        self._http.cut()
        if down_seconds > 0 and not self.stopping.is_set():
            self._reopening = threading.Timer(down_seconds, self._http.open)
            self._reopening.daemon = True
            self._reopening.start()

    def health(self) -> dict[str, Any]:
        """Return the body of ``GET /health``."""
        names = [model or self.config.module_name for model in self.models]
        return {"server": NODE, "models": names, **self.admission.health()}

    def runs(self) -> list[dict[str, Any]]:
        """Return the lines of ``GET /runs``."""
        return self.log.entries()

    def _new_admission(self) -> Admission:
        return Admission(self.config, counters=self.counters, log=self.log, output_root=self._output_root)

    def _tidy(self, root: Path) -> None:
        while not self.stopping.wait(self.config.tidy_seconds):
            remove_old(root, self.admission.running())

    def __enter__(self) -> Node:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


_PR_SET_PDEATHSIG = 1
_SLICE_SECONDS = 0.5


class StopSignal:
    """Waits for SIGTERM or SIGINT; a second signal ends the process at once.

    Create it in the main thread, before the node announces its address."""

    def __init__(self) -> None:
        # a signal handler may interrupt `get`: unlike Queue and Event, SimpleQueue is reentrant
        self._signals: queue.SimpleQueue[int] = queue.SimpleQueue()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)

    def wait(self) -> None:
        """Wait in slices: a signal just before the wait blocks does not interrupt it."""
        while True:
            try:
                self._signals.get(timeout=_SLICE_SECONDS)
            except queue.Empty:
                continue
            return

    def _stop(self, number: int, frame: FrameType | None) -> None:
        for either in (signal.SIGTERM, signal.SIGINT):
            signal.signal(either, signal.SIG_DFL)
        self._signals.put(number)


def stop_after_runs(node: Node, grace_seconds: float, say: Callable[[str], object]) -> None:
    """Refuse new runs, report how many are left through `say`, and stop after them."""
    node.admission.drain()
    with suppress(OSError):  # stdout may be closed
        say(_stop_message(node.admission.unfinished(), grace_seconds))
    node.drain(grace_seconds)
    node.stop()


def _stop_message(runs: int, grace_seconds: float) -> str:
    left = {0: "no run is left", 1: "1 run ends first"}.get(runs, f"{runs} runs end first")
    return (
        f"Stopping: {left}; results can be fetched meanwhile ({grace_seconds:g} s at most). "
        "A second signal ends the node at once."
    )


def die_with_parent() -> None:
    """Let the kernel kill this process when its parent ends (Linux; elsewhere no effect)."""
    if sys.platform != "linux":
        return
    parent = os.getppid()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # the parent has ended already
        os.kill(os.getpid(), signal.SIGKILL)
