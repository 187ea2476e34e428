"""A hostile model: it tries to read foreign data and sends false frames. Standard library."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import pickle
import resource
import signal
import socket
import struct
import sys
import threading
import time
from pathlib import Path
from typing import Any

from gpu_host.handlers import BadInput, RunContext

ESCAPES = "\x1b]0;title\x07\x1b[31mred\x9b31m\u202e"


class Exploit:
    def __reduce__(self) -> Any:
        return os.system, ("touch " + os.environ.get("TEST_FOLDER", "/nonexistent") + "/pwned",)


class Hostile:
    vram_mb = 10
    at_once = 2

    def __init__(self) -> None:
        # not at import: the test process imports this module too
        sys.dont_write_bytecode = True

    def run(self, payload: Any, ctx: RunContext) -> Any:
        return getattr(self, payload["do"])(payload, ctx)

    # -- foreign data ----------------------------------------------------------------------------------

    def reads(self, payload: Any, ctx: RunContext) -> Any:
        """Return the beginning of each path's content, or the error's name."""
        return {path: _read(path) for path in payload["paths"]}

    def surroundings(self, payload: Any, ctx: RunContext) -> Any:
        warden = os.getppid()
        worker = int(Path(f"/proc/{warden}/stat").read_text().rpartition(")")[2].split()[1])
        processes = {"worker": worker, "warden": warden}
        return {
            "environment": dict(os.environ),
            "descriptors": {number: _target(number) for number in os.listdir("/proc/self/fd")},
            "status": dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines()),
            "of": {
                f"{name} {what}": _read(f"/proc/{pid}/{what}")
                for name, pid in processes.items()
                for what in ("environ", "mem", "fd", "maps")
            },
            "trace": {name: _trace(pid) for name, pid in processes.items()},
            "kill": {name: _kill(pid) for name, pid in processes.items()} if payload.get("kill") else {},
            "limits": {
                name: resource.getrlimit(getattr(resource, f"RLIMIT_{name}"))
                for name in ("CORE", "NOFILE", "FSIZE", "AS", "NPROC")
            },
            "groups": os.getgroups(),
            "oom": Path("/proc/self/oom_score_adj").read_text().strip(),
        }

    def forks_once(self, payload: Any, ctx: RunContext) -> Any:
        """Return whether it has the end of the pipe that it was started with, and whether its child has."""
        end_read, end_written = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                os.write(end_written, json.dumps(_has_pipe()).encode())
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        return [_has_pipe(), json.loads(os.read(end_read, 100))]

    def writes(self, payload: Any, ctx: RunContext) -> Any:
        (ctx.output_dir / "mine.txt").write_text("x")
        return str(ctx.output_dir)

    def setuid(self, payload: Any, ctx: RunContext) -> Any:
        try:
            os.setuid(0)
        except OSError as error:
            return type(error).__name__
        return os.getuid()

    # -- false frames -----------------------------------------------------------------------------------

    def sends_bytes(self, payload: Any, ctx: RunContext) -> Any:
        """Send raw bytes, with a length or without; then wait."""
        body = {
            "pickle": pickle.dumps(Exploit()),
            "text": b"no json",
            "list": b"[1]",
            "deep": b"[" * 100_000,
            "utf8": b'{"said": "\xff"}',
        }[payload["what"]]
        _pipe().sendall(struct.pack(">I", len(body)) + body)
        ctx.wait(None)

    def sends(self, payload: Any, ctx: RunContext) -> Any:
        for frame in payload["frames"]:
            _send(frame)
        return "its own"

    def sends_for_itself(self, payload: Any, ctx: RunContext) -> Any:
        for frame in payload["frames"]:
            _send({"attempt": ctx.attempt_id, **frame})
        ctx.wait(None)

    def huge(self, payload: Any, ctx: RunContext) -> Any:
        """Send a frame that the worker would have to buffer completely."""
        end = _pipe()
        end.sendall(struct.pack(">I", payload["claims"]))
        with contextlib.suppress(OSError):
            for _ in range(payload["mib"]):
                end.sendall(b" " * (1 << 20))
        ctx.wait(None)

    def floods(self, payload: Any, ctx: RunContext) -> Any:
        """Send unsolicited answers for ever."""
        number = 0
        while True:
            number += 1
            _send({"said": payload["said"].format(number), "attempt": "none", "x": "y" * 1000})

    def chatters(self, payload: Any, ctx: RunContext) -> Any:
        """Send events without the limiter of its own process."""
        for number in range(payload["times"]):
            _send({"said": "heard", "attempt": ctx.attempt_id, "kind": "partial", "value": f"p{number}"})
        return "said"

    def half(self, payload: Any, ctx: RunContext) -> Any:
        """Send the beginning of a frame only."""
        _pipe().sendall(struct.pack(">I", 1000) + b"{")
        ctx.wait(None)

    def deaf(self, payload: Any, ctx: RunContext) -> Any:
        os.kill(os.getpid(), signal.SIGSTOP)
        ctx.wait(None)  # the signal may reach another thread first

    def escapes(self, payload: Any, ctx: RunContext) -> Any:
        os.write(1, ESCAPES.encode() + b"\n")
        ctx.log(ESCAPES)
        raise BadInput(ESCAPES)

    def prints(self, payload: Any, ctx: RunContext) -> Any:
        line = b"x" * 100 + b"\n"
        until = time.monotonic() + payload["seconds"]
        written = 0
        while time.monotonic() < until:
            written += os.write(1, line * 100)
        return written

    # -- resources --------------------------------------------------------------------------------------

    def allocates(self, payload: Any, ctx: RunContext) -> Any:
        return len(bytearray(payload["mib"] << 20))

    def opens(self, payload: Any, ctx: RunContext) -> Any:
        kept = []
        with contextlib.suppress(OSError):
            while len(kept) < payload["most"]:
                kept.append(os.open("/dev/null", os.O_RDONLY))
        for number in kept:
            os.close(number)
        return len(kept)

    def fills(self, payload: Any, ctx: RunContext) -> Any:
        signal.signal(
            signal.SIGXFSZ, signal.SIG_IGN
        ) if threading.current_thread() is threading.main_thread() else 0
        with (ctx.output_dir / "large").open("wb") as file:
            file.write(b"x" * payload["bytes"])
        return payload["bytes"]

    def forks(self, payload: Any, ctx: RunContext) -> Any:
        pids = []
        try:
            for _ in range(payload["most"]):
                pid = os.fork()
                if pid == 0:
                    time.sleep(60)
                    os._exit(0)
                pids.append(pid)
        except OSError:
            pass
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        return len(pids)

    def is_healthy(self, payload: Any, ctx: RunContext) -> Any:
        return {"uid": os.getuid(), "home": os.environ.get("HOME")}


def _read(path: str) -> str:
    try:
        if os.path.isdir(path):
            return " ".join(os.listdir(path))
        with open(path, "rb") as file:
            return file.read(2000).decode(errors="replace")
    except OSError as error:
        return type(error).__name__


def _has_pipe() -> bool:
    return _target(sys.argv[1]).startswith("socket:")


def _target(number: str) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{number}")
    except OSError:
        return "gone"


def _trace(pid: int) -> str:
    """PTRACE_SEIZE, which stops no process."""
    libc = ctypes.CDLL(None, use_errno=True)
    return "traced" if libc.ptrace(0x4206, pid, 0, 0) == 0 else os.strerror(ctypes.get_errno())


def _kill(pid: int) -> str:
    try:
        os.kill(pid, 0)
    except OSError as error:
        return type(error).__name__
    return "may"


def _pipe() -> socket.socket:
    for number in os.listdir("/proc/self/fd"):
        if _target(number).startswith("socket:"):
            return socket.socket(fileno=os.dup(int(number)))
    raise LookupError("no pipe")


def _send(frame: Any) -> None:
    body = json.dumps(frame).encode()
    _pipe_of_process().sendall(struct.pack(">I", len(body)) + body)


_kept: list[socket.socket] = []


def _pipe_of_process() -> socket.socket:
    if not _kept:
        _kept.append(_pipe())
    return _kept[0]


MODELS = {"hostile": Hostile}
