"""The process of a plain server: `python -S plain_program.py PORT HEALTH LOG [any_path] [one_thread]`.

Tests start a hundred of them: it imports no more than it needs.
"""

from __future__ import annotations

import json
import sys
import time
from http.server import BaseHTTPRequestHandler, HTTPServer, ThreadingHTTPServer
from pathlib import Path
from typing import Any

LONGEST_SECONDS = 120.0


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
