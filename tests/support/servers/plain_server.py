"""A plain HTTP server in a process of its own, as a user's first one: it takes a payload and answers, and has
no page for its health. `python plain_server.py PORT HEALTH LOG [any_path] [one_thread]`."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, HTTPServer, ThreadingHTTPServer
from pathlib import Path
from typing import Any

if __name__ != "__main__":
    from dispatcher_project.supervisor.embedded import die_with_parent
    from tests.support.ports import free_port

LONGEST_SECONDS = 120.0


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
            [sys.executable, __file__, str(self.port), str(self.health), str(self._log), *kind],
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


class Plain(BaseHTTPRequestHandler):
    """Without `do_GET`, so that `http.server` itself answers 501."""

    log = folder = Path()
    any_path = False

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.path != "/run" and not self.any_path:
            self.note("refused")
            self.answer(404, {"detail": "Not Found"})
            return
        payload = json.loads(body)
        self.note("began")
        until = time.monotonic() + float(payload.get("seconds", LONGEST_SECONDS if "gate" in payload else 0))
        while time.monotonic() < until and not (
            "gate" in payload and (self.folder / payload["gate"]).exists()
        ):
            time.sleep(0.01)
        self.note("ended")
        status = int(payload.get("status", 200))
        self.answer(status, payload.get("answer", {"result": payload}))

    def note(self, event: str) -> None:
        entry = {"event": event, "job": self.headers.get("X-Job-Id", ""), "path": self.path}
        with self.log.open("a") as log:
            log.write(json.dumps(entry) + "\n")

    def answer(self, status: int, said: Any) -> None:
        body = said.encode() if isinstance(said, str) else json.dumps(said).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


class WithPages(Plain):
    status = 404

    def do_GET(self) -> None:
        self.answer(self.status, "OK" if self.status == 200 else {"detail": "no such page"})


def main(port: str, health: str, log: str, *kind: str) -> None:
    Plain.log, Plain.folder, WithPages.status = Path(log), Path(log).parent, int(health)
    Plain.any_path = "any_path" in kind
    handler = Plain if health == "501" else WithPages
    server = HTTPServer if "one_thread" in kind else ThreadingHTTPServer
    server(("127.0.0.1", int(port)), handler).serve_forever(0.05)


if __name__ == "__main__":
    main(*sys.argv[1:])
