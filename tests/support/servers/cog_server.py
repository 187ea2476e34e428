"""A container as Cog's own HTTP server behaves (its documentation and `coglet`'s routes): one PUT per
prediction, 202 for one that runs, 409 when full, no way to ask for a result, a webhook at the end."""

from __future__ import annotations

import json
import threading
import urllib.error
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import quote, urlsplit


class CogServer:
    """runs: how often each id was run. gates: what a prediction waits for. deaf: a cancel takes so many
    requests to show. webhooks: whether they are sent. seen: the headers of each PUT. garbled: each
    answer is not JSON. upload_url: of `--upload-url`. files: by name; uploaded there as coglet 0.23 does, and
    named in the output."""

    def __init__(self, *, slots: int = 1) -> None:
        self.slots = slots
        self.state = ""
        self.runs: dict[str, int] = {}
        self.cancels: list[str] = []
        self.bodies: list[dict[str, Any]] = []
        self.prefers: list[str | None] = []
        self.pushed: list[dict[str, Any]] = []
        self.seen: list[dict[str, str]] = []
        self.garbled = False
        self.upload_url = ""
        self.files: dict[str, bytes] = {}
        self.webhooks = True
        self.hold = False
        self.refuse: tuple[int, Any] | None = None
        self.outcome: dict[str, Any] = {"status": "succeeded", "output": "picture"}
        self.gate, self.some_run = threading.Event(), threading.Event()
        self._lock = threading.Lock()
        self.running: dict[str, bool] = {}
        outer = self

        class Handler(_Handler):
            cog = outer

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def health(self) -> str:
        return self.state or ("BUSY" if len(self.running) >= self.slots else "READY")

    def put(self, number: str, body: dict[str, Any]) -> tuple[int, Any]:
        with self._lock:
            if number in self.running:
                return 202, {"id": number, "status": "processing", "input": body["input"]}
            if self.state:
                return 503, {"error": "Setup has not finished yet", "status": "failed"}
            if len(self.running) >= self.slots:
                return 409, {"error": "At capacity - all prediction slots busy", "status": "failed"}
            self.running[number] = False
            self.runs[number] = self.runs.get(number, 0) + 1
        threading.Thread(target=self._predict, args=(number, body), daemon=True).start()
        return 202, {"id": number, "status": "starting"}

    def cancel(self, number: str) -> int:
        self.cancels.append(number)
        if number not in self.running:
            return 404
        self.running[number] = True
        return 200

    def _predict(self, number: str, body: dict[str, Any]) -> None:
        self.some_run.set()
        cancelled = False
        while self.hold and not cancelled and not self.gate.wait(0.005):
            cancelled = self.running[number]
        said = {"status": "canceled"} if cancelled else self._uploaded(number) or self.outcome
        del self.running[number]
        end = {"id": number, "input": body["input"], "logs": "loading\n", **said}
        end["metrics"] = {"predict_time": 0.5}
        self.pushed.append(end)
        if self.webhooks and body.get("webhook"):
            headers = {"Content-Type": "application/json"}
            data = json.dumps(end).encode()
            request = urllib.request.Request(body["webhook"], data, headers, method="POST")
            urllib.request.urlopen(request, timeout=5).close()

    def _uploaded(self, number: str) -> dict[str, Any] | None:
        """Upload the files, and return the outcome; None without an upload URL."""
        if not self.upload_url:
            return None
        places = []
        for name, data in self.files.items():
            url = f"{self.upload_url}/{quote(name, safe='')}"
            headers = {"Content-Type": "image/png", "X-Prediction-ID": number}
            try:
                request = urllib.request.Request(url, data, headers, method="PUT")
                with urllib.request.urlopen(request, timeout=30) as answer:
                    places.append(urlsplit(answer.headers["Location"])._replace(query="").geturl())
            except urllib.error.HTTPError as error:
                why = f"Failed to upload output: upload returned status {error.code}"
                return {"status": "failed", "error": why}
        return {"status": "succeeded", "output": places}

    def __enter__(self) -> CogServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.gate.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    cog: CogServer

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        if self.path != "/health-check":
            self._say(404, {"detail": "Not Found"})
            return
        began = "2026-01-01T00:00:00.000000+00:00"
        self._say(200, {"status": self.cog.health(), "setup": {"started_at": began, "status": "succeeded"}})

    def do_PUT(self) -> None:
        body = self._body()
        self.cog.bodies.append(body)
        self.cog.prefers.append(self.headers.get("Prefer"))
        self.cog.seen.append(dict(self.headers))
        if self.cog.garbled:
            self._write(200, b"{nonsense")
            return
        if self.cog.refuse is not None:
            self._say(*self.cog.refuse)
            return
        self._say(*self.cog.put(self.path.rpartition("/")[2], body))

    def do_POST(self) -> None:
        self._body()
        self._say(self.cog.cancel(self.path.split("/")[-2]), {})

    def _body(self) -> dict[str, Any]:
        return json.loads(self.rfile.read(int(self.headers["Content-Length"])))

    def _say(self, status: int, said: Any) -> None:
        self._write(status, json.dumps(said).encode())

    def _write(self, status: int, data: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
