"""A real HTTP server whose `/health` answer a test sets; it keeps the headers of the requests."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest


class HealthServer:
    """`says`: the answer's object, or bytes as they are. `status`: its code. Use as a context."""

    def __init__(self) -> None:
        self.says: Any = {"status": "ok", "active_jobs": 0, "max_concurrent": 1}
        self.status = 200
        self.asked: list[dict[str, str]] = []
        outer = self

        class Answer(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.asked.append({"path": self.path, **{k.lower(): v for k, v in self.headers.items()}})
                body = outer.says if isinstance(outer.says, bytes) else json.dumps(outer.says).encode()
                self.send_response(outer.status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def runs(self, *attempts: str, boot_id: str = "boot-1") -> None:
        """It lists its jobs."""
        self.lists(*(("j", attempt) for attempt in attempts), boot_id=boot_id)

    def lists(self, *runs: tuple[str, str], boot_id: str = "boot-1") -> None:
        """runs: job and attempt of each."""
        jobs = [{"job_id": job, "attempt": attempt} for job, attempt in runs]
        self.says = {"status": "ok", "active_jobs": len(jobs), "boot_id": boot_id, "jobs": jobs}

    def counts(self, active: int, **more: Any) -> None:
        """It only counts them."""
        self.says = {"status": "ok", "active_jobs": active, **more}

    def __enter__(self) -> HealthServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def gpu() -> Iterator[HealthServer]:
    with HealthServer() as server:
        yield server
