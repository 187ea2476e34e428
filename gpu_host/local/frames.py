"""The pipe between a worker and its model process: JSON frames, each after its length in four bytes.

To the process: load, unload, run, cancel, probe. From it: ready or broken, loaded, unloaded, ended, heard,
probed. The worker validates every frame from the process: model code can write anything to its pipe.
"""

from __future__ import annotations

import contextlib
import json
import math
import socket
import struct
import threading
from collections.abc import Callable, Mapping
from dataclasses import fields
from types import SimpleNamespace
from typing import Any

from foundation import json_text
from foundation.texts import printable
from gpu_host.handlers.code import Declared, declared_by, is_name
from gpu_host.handlers.errors import MAX_TEXT, ContractError, Failure, storable
from gpus.errors import MAX_TRACEBACK
from gpus.protocol import parse_progress

MAX_FRAME_BYTES = 256 * 1024 * 1024
SEND_SECONDS = 20.0
_LENGTH = struct.Struct(">I")

Frame = dict[str, Any]
RUN_FRAMES = frozenset({"ended", "heard"})
ANSWERS = frozenset({"ready", "loaded", "unloaded", "probed"})
MAX_MODELS = 1000
MAX_WHY = 2000
_CODE_CHARS = 64


class PipeBroken(Exception):
    """The other end is closed, does not read, or breaks the protocol."""


class Pipe:
    """One end of the pipe. `send` from any thread; `receive` from one."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._lock = threading.Lock()
        # model code may hold the interpreter lock; a send must not block for ever
        timeout = struct.pack("ll", int(SEND_SECONDS), 0)
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, timeout)

    def send(self, frame: Frame) -> None:
        """Send a frame. Raises PipeBroken; ValueError for a value that is not JSON or is too large."""
        body = json.dumps(frame, separators=(",", ":"), allow_nan=False).encode()
        if len(body) > MAX_FRAME_BYTES:
            raise ValueError(f"a frame has {len(body)} bytes, {MAX_FRAME_BYTES} at most")
        try:
            with self._lock:
                self._end.sendall(_LENGTH.pack(len(body)) + body)
        except OSError as error:
            raise PipeBroken(str(error)) from error

    def receive(self, admit: Callable[[int], None] = lambda size: None) -> Frame:
        """Wait for the next frame. Raises PipeBroken.

        admit: called with the size before the body is read; may block, or raise PipeBroken."""
        (length,) = _LENGTH.unpack(self._read(_LENGTH.size))
        if length > MAX_FRAME_BYTES:
            raise PipeBroken(f"a frame of {length} bytes")
        admit(length)
        try:
            frame = json_text.read(self._read(length))
        except json_text.NotReadable as error:
            raise PipeBroken(f"a frame that can't be read: {error}") from error
        if not isinstance(frame, dict):
            raise PipeBroken("a frame that is not an object")
        return frame

    def close(self) -> None:
        with contextlib.suppress(OSError):  # the other end closed it first
            self._end.shutdown(socket.SHUT_RDWR)
        self._end.close()

    def _read(self, size: int) -> bytes:
        parts = bytearray()
        while len(parts) < size:
            try:
                part = self._end.recv(min(size - len(parts), 1 << 20))
            except OSError as error:
                raise PipeBroken(str(error)) from error
            if not part:
                raise PipeBroken("closed")
            parts += part
        return bytes(parts)


class BadFrame(Exception):
    """A frame that our own code never sends."""


def read_why(said: Any) -> str:
    """Return the reason, printable and on one line."""
    return printable(_text(said, MAX_WHY))


def read_failure(said: Any) -> Failure | None:
    """Return the failure in a frame, or None if it has none. Raises BadFrame."""
    if said is None:
        return None
    if not isinstance(said, Mapping):
        raise BadFrame("a failure that is no object")
    return Failure(
        code=_text(said.get("code"), _CODE_CHARS),
        text=_text(said.get("text"), MAX_TEXT),
        trace=_text(said.get("trace"), MAX_TRACEBACK),
        sticky=said.get("sticky") is True,
        unfinished=said.get("unfinished") is True,
    )


def read_event(kind: Any, value: Any) -> tuple[str, Any] | None:
    """Return (kind, value) of a run's progress or partial output; None if it is not valid. Partial output is
    measured by the limiter."""
    if kind == "progress":
        progress = parse_progress(value)
        return ("progress", progress.as_json()) if progress else None
    if kind == "partial":
        return "partial", value
    return None


def read_seconds(said: Any) -> float:
    """Return the duration of a load. Raises BadFrame."""
    if isinstance(said, bool) or not isinstance(said, (int, float)) or not 0 <= said < math.inf:
        raise BadFrame("seconds that are no number")
    return float(said)


def read_models(said: Any) -> dict[str, Declared]:
    """Return the declared models by name. Raises BadFrame."""
    if not isinstance(said, list) or len(said) > MAX_MODELS:
        raise BadFrame("models that are no list")
    known = {field.name for field in fields(Declared)}
    found: dict[str, Declared] = {}
    for one in said:
        if not isinstance(one, Mapping) or set(one) != known or not is_name(one["name"]):
            raise BadFrame("a model that is not valid")
        attributes = {name: value for name, value in one.items() if name != "name"}
        attributes["min_resident"] = bool(one["min_resident"])
        try:
            found[one["name"]] = declared_by(one["name"], SimpleNamespace(**attributes))
        except (ContractError, TypeError) as error:
            raise BadFrame(str(error)) from error
    return found


def _text(said: Any, most: int) -> str:
    return storable(said)[:most] if isinstance(said, str) else ""
