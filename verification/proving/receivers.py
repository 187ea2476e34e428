"""The trial's interface to the callback receiver (receiver.py): it can be killed and restarted on its
port."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path

from verification.proving.children import Child, Children
from verification.proving.ledger import Tail


class CallbackReceiver:
    """The callback receiver's process. secrets: by tenant; messages of a tenant without one are logged
    unverified."""

    def __init__(self, children: Children, log: Path, port: int, secrets: Mapping[str, str]) -> None:
        self.log, self._port = log, port
        self._children, self._secrets = children, dict(secrets)
        self._tail = Tail(log)
        self._last_at = 0.0
        self._child: Child | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    @property
    def is_running(self) -> bool:
        return self._child is not None and self._child.is_running()

    def start(self) -> None:
        command = [sys.executable, "-m", "verification.proving.receiver"]
        self._child = self._children.start(
            "receiver", *command, "--log", str(self.log), "--port", str(self._port), talks=True
        )
        assert self._child.process.stdin is not None
        self._child.process.stdin.write(json.dumps(self._secrets).encode() + b"\n")
        self._child.receive()

    def kill(self) -> None:
        if self._child is not None:
            self._child.kill()

    def last_at(self) -> float:
        """Return when the last message arrived, Unix seconds."""
        for line in self._tail.read():
            self._last_at = max(self._last_at, line["at"])
        return self._last_at
