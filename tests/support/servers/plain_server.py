"""A plain HTTP server in a process of its own, as a user's first one: it takes a payload and answers, and has
no page for its health (plain_program.py)."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dispatcher_project.supervisor.embedded import die_with_parent
from tests.support.ports import free_port

PROGRAM = Path(__file__).with_name("plain_program.py")


@dataclass
class PlainServer:
    """folder: for its log and the gates. health: the status of `GET /health`: 404, 405 or 501 (no GET at
    all), or 200 with the text `OK`. any_path: a POST at any path is a run. one_thread: it serves one request
    at a time."""

    folder: Path
    health: int = 404
    port: int = 0
    any_path: bool = False
    one_thread: bool = False
    _process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        self.port = self.port or free_port()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def _log(self) -> Path:
        return self.folder / f"plain-{self.port}.log"

    def start(self) -> PlainServer:
        """Returns once it accepts connections."""
        kind = [name for name in ("any_path", "one_thread") if getattr(self, name)]
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-S", str(PROGRAM)),
                *(str(self.port), str(self.health), str(self._log), *kind),
            ],
            preexec_fn=die_with_parent,  # noqa: PLW1509
        )
        until = time.monotonic() + 30
        while not self._accepts():
            assert time.monotonic() < until, "the plain server does not start"
            time.sleep(0.02)
        return self

    def kill(self) -> None:
        """SIGKILL; returns once it is dead."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def open(self, gate: str) -> None:
        """The run with `{"gate": gate}` in its payload ends."""
        (self.folder / gate).touch()

    def runs(self) -> list[dict[str, Any]]:
        """One entry when a run begins, one when it ends, one for each POST that is answered 404:
        `{"event", "job", "path"}`."""
        lines = self._log.read_text().splitlines() if self._log.exists() else []
        return [json.loads(line) for line in lines]

    def began(self) -> int:
        return sum(run["event"] == "began" for run in self.runs())

    def ended(self) -> int:
        return sum(run["event"] == "ended" for run in self.runs())

    def _accepts(self) -> bool:
        try:
            urllib.request.urlopen(f"{self.url}/health", timeout=5).close()
        except urllib.error.HTTPError:
            return True
        except OSError:
            return False
        return True

    def __enter__(self) -> PlainServer:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.kill()
