"""The pipe between a worker and its model process: frames of JSON, four bytes of length first.

To the process: load, unload, run, cancel, probe. From it: ready or broken, loaded, unloaded, ended, heard,
probed.
"""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import threading
from collections.abc import Callable
from typing import Any

from foundation import foreign_json

MAX_FRAME_BYTES = 256 * 1024 * 1024
SEND_SECONDS = 20.0
_LENGTH = struct.Struct(">I")

Frame = dict[str, Any]


class PipeBroken(Exception):
    """The other end is gone, does not read, or does not speak the protocol."""


class Pipe:
    """One end. `send` from any thread; `receive` from one."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._lock = threading.Lock()
        # a process that holds its interpreter does not read: who sends must not wait for it for ever
        timeout = struct.pack("ll", int(SEND_SECONDS), 0)
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, timeout)

    def send(self, frame: Frame) -> None:
        """Raises PipeBroken, ValueError for what is not JSON."""
        body = json.dumps(frame, separators=(",", ":"), allow_nan=False).encode()
        if len(body) > MAX_FRAME_BYTES:
            raise ValueError(f"a frame has {len(body)} bytes, {MAX_FRAME_BYTES} at most")
        try:
            with self._lock:
                self._end.sendall(_LENGTH.pack(len(body)) + body)
        except OSError as error:
            raise PipeBroken(str(error)) from error

    def receive(self, admit: Callable[[int], None] = lambda size: None) -> Frame:
        """Waits for the next frame. admit: asked with its size before it is read; may wait, or raise
        PipeBroken. Raises PipeBroken."""
        (length,) = _LENGTH.unpack(self._read(_LENGTH.size))
        if length > MAX_FRAME_BYTES:
            raise PipeBroken(f"a frame of {length} bytes")
        admit(length)
        try:
            frame = foreign_json.read(self._read(length))
        except foreign_json.NotReadable as error:
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
