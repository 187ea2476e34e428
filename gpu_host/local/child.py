"""``python -m gpu_host.local.child PIPE PATH…``: the process that holds the models, started by its warden.

Frames use a file descriptor of their own; standard output and error belong to the models. What a run's code
prints is sent in frames of its run, the rest is read by the worker. Each run has a thread; loads and unloads
follow the order of their frames. A process forked by a handler can't send frames.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import os
import queue
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from foundation.log_lines import LogLine, as_json
from gpu_host.handlers import RunContext
from gpu_host.handlers.code import ModelCode, find_models
from gpu_host.handlers.errors import ContractError, Failure, failure_of
from gpu_host.local.frames import Pipe, PipeBroken
from gpu_host.local.output_limiter import OutputLimiter
from gpu_host.local.run_output import BATCH_SECONDS, LineCollector, OutputRouter, shared_rate

_TEST_BYTES = 4096
_TEST_PATTERN = 0x5A


def run_kernel() -> str:
    """Write a few bytes with the first visible GPU and read them back; return why it failed, or empty.

    Uses the driver library and the primary context, which torch and others share. Blocks if the GPU hangs."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return "no CUDA driver library (libcuda.so.1)"
    device, context, memory = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
    back = (ctypes.c_ubyte * _TEST_BYTES)()
    steps: list[tuple[str, tuple[Any, ...]]] = [
        ("cuInit", (0,)),
        ("cuDeviceGet", (ctypes.byref(device), 0)),
        ("cuDevicePrimaryCtxRetain", (ctypes.byref(context), device)),
        ("cuCtxSetCurrent", (context,)),
        ("cuMemAlloc_v2", (ctypes.byref(memory), ctypes.c_size_t(_TEST_BYTES))),
        ("cuMemsetD8_v2", (memory, ctypes.c_ubyte(_TEST_PATTERN), ctypes.c_size_t(_TEST_BYTES))),
        ("cuMemcpyDtoH_v2", (back, memory, ctypes.c_size_t(_TEST_BYTES))),
        ("cuMemFree_v2", (memory,)),
    ]
    for name, arguments in steps:
        status = getattr(cuda, name)(*arguments)
        if status != 0:
            return f"{name} failed: CUDA error {status}"
    return (
        ""
        if bytes(back) == bytes([_TEST_PATTERN]) * _TEST_BYTES
        else "the GPU's memory does not hold the bytes that were written"
    )


def main() -> int:
    pipe_number, *paths = sys.argv[1:]
    end = socket.socket(fileno=int(pipe_number))
    end.set_inheritable(False)
    os.register_at_fork(after_in_child=end.close)  # forked processes must not use the pipe
    pipe = Pipe(end)
    router = OutputRouter(adopts_threads=True)
    router.install()  # before the models' modules are imported: they may keep the streams
    try:
        models = find_models(paths)
    except ContractError as error:
        pipe.send({"said": "broken", "why": str(error)})
        return 1
    child = Child(pipe, models, router)
    pipe.send(
        {
            "said": "ready",
            "pid": os.getpid(),
            "models": [model.declared.as_json() for model in models.values()],
        }
    )
    for work, name in ((child.run_operations, "loads"), (child.send_lines, "lines")):
        threading.Thread(target=exit_on_error, args=(work,), name=name, daemon=True).start()
    exit_on_error(child.serve)
    return 0


def exit_on_error(work: Callable[..., None], *arguments: Any) -> None:
    """Call `work`; exit the process if it raises.

    A thread that dies unseen would leave its run, or all loads, without an answer; the worker notices an exit
    at once."""
    try:
        work(*arguments)
    except BaseException as error:
        with contextlib.suppress(BaseException):
            sys.stderr.write(f"the model process ends by an error: {failure_of(error).trace}\n")
            sys.stderr.flush()
        os._exit(1)


class Child:
    """Carries out the worker's frames."""

    def __init__(self, pipe: Pipe, models: Mapping[str, ModelCode], router: OutputRouter) -> None:
        self._pipe, self._models, self._router = pipe, models, router
        self._rate = shared_rate()
        self._pid = os.getpid()
        self._runs: dict[str, RunContext] = {}
        self._operations: queue.SimpleQueue[Mapping[str, Any]] = queue.SimpleQueue()

    def serve(self) -> None:
        """Receive frames until the worker closes the pipe."""
        while True:
            try:
                frame = self._pipe.receive()
            except PipeBroken:
                os._exit(0)  # threads of handlers may never end
            self._take(frame)

    def _take(self, frame: Mapping[str, Any]) -> None:
        if frame["do"] == "run":
            lines = self._collector(frame["attempt"])
            ctx = self._context(frame, lines)
            self._runs[frame["attempt"]] = ctx
            threading.Thread(
                target=exit_on_error, args=(self._run, frame, ctx, lines), name="run", daemon=True
            ).start()
        elif frame["do"] == "cancel":
            running = self._runs.get(frame["attempt"])
            if running is not None:
                running.cancel()
        else:
            self._operations.put(frame)

    def _send(self, said: str, **fields: Any) -> None:
        if os.getpid() != self._pid:  # a forked process returned from its handler
            os._exit(0)
        try:
            self._pipe.send({"said": said, **fields})
        except PipeBroken:
            os._exit(1)

    # -- loads ------------------------------------------------------------------------------------------

    def run_operations(self) -> None:
        """Carry out loads, unloads and probes one after the other; never returns."""
        with self._router.paused():  # what a load prints does not belong to a run beside it
            while True:
                frame = self._operations.get()
                if frame["do"] == "load":
                    self._load(self._models[frame["model"]])
                elif frame["do"] == "unload":
                    self._unload(self._models[frame["model"]])
                elif frame["do"] == "probe":
                    self._send("probed", why=run_kernel() if frame["gpu"] else "")

    def _load(self, model: ModelCode) -> None:
        began = time.monotonic()
        failure: Failure | None = None
        try:
            if not model.is_loaded:
                model.load()
        except BaseException as error:
            failure = failure_of(error)
        if failure is not None:  # outside `except`: the traceback keeps a half-loaded model alive
            self._forget(model)
        seconds = time.monotonic() - began
        self._send(
            "loaded", model=model.name, seconds=seconds, failure=None if failure is None else asdict(failure)
        )

    def _unload(self, model: ModelCode) -> None:
        self._forget(model)
        self._send("unloaded", model=model.name)

    def _forget(self, model: ModelCode) -> None:
        for step in (model.unload, free_memory):
            try:
                step()
            except BaseException as error:
                sys.stderr.write(f"unload of {model.name}: {failure_of(error).trace}\n")

    # -- runs -------------------------------------------------------------------------------------------

    def send_lines(self) -> None:
        """Send the runs' lines while they write no more; never returns."""
        while True:
            time.sleep(BATCH_SECONDS)
            self._router.flush()

    def _collector(self, attempt: str) -> LineCollector:
        def send(lines: list[LogLine]) -> None:
            self._send("heard", attempt=attempt, kind="log", value=as_json(lines))

        return LineCollector(send, self._rate)

    def _context(self, frame: Mapping[str, Any], lines: LineCollector) -> RunContext:
        attempt, limiter = frame["attempt"], OutputLimiter()

        def send_event(kind: str, value: Any) -> None:
            if kind == "log":
                lines.log(value["text"], value["fields"])
                return
            for item_kind, item in limiter.admit(kind, value, time.monotonic()):
                value_sent = as_json(item) if item_kind == "log" else item
                self._send("heard", attempt=attempt, kind=item_kind, value=value_sent)

        return RunContext(
            model_name=frame["model"],
            job_id=frame["job"],
            attempt_id=attempt,
            output_dir=Path(frame["output_dir"]),
            on_output=send_event,
            input_cache_bytes=frame["input_cache_bytes"],
        )

    def _run(self, frame: Mapping[str, Any], ctx: RunContext, lines: LineCollector) -> None:
        result, failure = None, None
        with self._router.collecting(lines):
            try:
                ctx.check()
                result = self._models[frame["model"]].run(frame["payload"], ctx)
            except BaseException as error:  # also SystemExit: a handler must not end the process by it
                failure = failure_of(error)
        ctx.model = None  # a kept context must not keep the model
        failure = failure or _too_large(result, frame["max_result_bytes"])
        result = None if failure is not None else result
        ended = {"attempt": frame["attempt"], "failure": None if failure is None else asdict(failure)}
        del self._runs[frame["attempt"]]
        try:
            self._send("ended", **ended, result=result)
        except Exception as error:  # also exceptions of a result's own methods
            bad = failure_of(TypeError(f"the result is not JSON: {failure_of(error).text}"))
            self._send("ended", **{**ended, "failure": asdict(bad)}, result=None)


def _too_large(result: Any, most: int) -> Failure | None:
    """Return a failure if the result exceeds the limit: the worker rejects larger frames."""
    try:
        size = len(json.dumps(result, separators=(",", ":"), allow_nan=False))
    except BaseException:  # not JSON: `_run` reports it
        return None
    return Failure("run_failed", f"The result has {size} bytes, {most} at most.") if size > most else None


def free_memory() -> None:
    """Return unreferenced memory to the GPU and to the system."""
    gc.collect()
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.empty_cache()
    if sys.platform == "linux":
        with contextlib.suppress(AttributeError):  # not glibc
            ctypes.CDLL(None).malloc_trim(0)


if __name__ == "__main__":
    sys.exit(main())
