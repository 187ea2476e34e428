"""``python -m verification.hostile.neighbour PLAN``: the other tenant, whose jobs must not suffer.

PLAN is a JSON file: ``{url, key, model, rate, log}``. It submits `rate` jobs a second on schedule, however
long the answers take (a request that waits for a free thread here counts from when it was due); of five jobs
one is followed by its event stream, one has a callback, and one is read. Every answer is a line of the log:
``{what, at, took, status}``.
"""

from __future__ import annotations

import json
import queue
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from verification.hostile.wire import ask, head, open_socket
from verification.proving.ledger import Ledger

_THREADS = 24
_WAIT_SECONDS = 20.0
_FOLLOW_SECONDS = 60.0
RUN_SECONDS = 0.02


class Neighbour:
    """The other tenant: submits on schedule, follows its jobs, waits for callbacks, and logs each latency."""

    def __init__(self, plan: dict[str, Any]) -> None:
        self._plan = plan
        self._ledger = Ledger(Path(plan["log"]))
        self._due: queue.SimpleQueue[tuple[int, float]] = queue.SimpleQueue()
        self._awaited: dict[str, float] = {}
        self._arrived: dict[str, float] = {}
        self._lock = threading.Lock()
        self._hook = ThreadingHTTPServer(("127.0.0.1", 0), _hook(self._mark_arrived))
        threading.Thread(target=self._hook.serve_forever, daemon=True).start()
        for _ in range(_THREADS):
            threading.Thread(target=self._work_for_ever, daemon=True).start()
        threading.Thread(target=self._look_for_missing, daemon=True).start()

    def run(self) -> None:
        began, number = time.time(), 0
        while True:
            at = began + number / self._plan["rate"]
            time.sleep(max(0.0, at - time.time()))
            self._due.put((number, at))
            number += 1

    def _work_for_ever(self) -> None:
        while True:
            self._submit(*self._due.get())

    def _submit(self, number: int, at: float) -> None:
        body: dict[str, Any] = {
            "model": self._plan["model"],
            "payload": {"number": number, "seconds": RUN_SECONDS},
        }
        if number % 5 == 1:
            body["callback_url"] = f"http://127.0.0.1:{self._hook.server_port}/"
        answer = self._ask("POST", "/api/v1/queue/submit", body)
        self._note("submit", at, answer.status)
        if answer.status not in (200, 202) or "job_id" not in answer.said:
            return
        job_id, accepted = answer.said["job_id"], time.time()
        if number % 5 == 0:
            self._expect("end", job_id, accepted)
            threading.Thread(target=self._follow, args=(job_id, accepted), daemon=True).start()
        elif number % 5 == 1:
            self._expect("callback", job_id, accepted)
            with self._lock:
                came = self._arrived.pop(job_id, 0.0)
                if not came:
                    self._awaited[job_id] = accepted
            if came:
                self._note("callback", accepted, 204, until=came, job=job_id)
        elif number % 5 == 2:
            began = time.time()
            self._note("read", began, self._ask("GET", f"/api/v1/queue/jobs/{job_id}").status)

    def _ask(self, method: str, path: str, body: Any = None) -> Any:
        return ask(
            self._plan["url"],
            method,
            path,
            key=self._plan["key"],
            body=body,
            timeout=_WAIT_SECONDS,
            as_neighbour=True,
        )

    def _follow(self, job_id: str, accepted: float) -> None:
        """Reconnect with the last event id until the job has ended, as a browser does."""
        last, until = 0, accepted + _FOLLOW_SECONDS
        while time.time() < until:
            over, last = self._read_stream(job_id, last)
            if over:
                self._note("end", accepted, 200, job=job_id)
                return
            time.sleep(0.2)
        self._note("end", accepted, 0, job=job_id)

    def _read_stream(self, job_id: str, last: int) -> tuple[bool, int]:
        request = head(
            "GET",
            f"/api/v1/queue/jobs/{job_id}/events",
            key=self._plan["key"],
            headers={"Last-Event-ID": str(last), "Connection": "close"},
        )
        said = b""
        try:
            with open_socket(self._plan["url"], _WAIT_SECONDS, as_neighbour=True) as sock:
                sock.sendall(request)
                while piece := sock.recv(65536):
                    said += piece
                    if b"event: done" in said:
                        return True, last
        except OSError:
            pass
        ids = [
            int(line[3:]) for line in said.splitlines() if line[:3] == b"id:" and line[3:].strip().isdigit()
        ]
        return b"event: done" in said, max([last, *ids])

    def _mark_arrived(self, job_id: str) -> None:
        now = time.time()
        with self._lock:
            accepted = self._awaited.pop(job_id, None)
            if accepted is None:
                self._arrived[job_id] = now  # its submit has not been answered yet
                return
        self._note("callback", accepted, 204, until=now, job=job_id)

    def _look_for_missing(self) -> None:
        while True:
            time.sleep(1.0)
            with self._lock:
                late = [job for job, at in self._awaited.items() if time.time() - at > _FOLLOW_SECONDS]
                given_up = {job: self._awaited.pop(job) for job in late}
            for job, accepted in given_up.items():
                self._note("callback", accepted, 0, job=job)

    def _expect(self, kind: str, job: str, at: float) -> None:
        self._ledger.write({"what": "await", "kind": kind, "at": at, "job": job})

    def _note(self, what: str, at: float, status: int, *, until: float | None = None, job: str = "") -> None:
        took = max(0.0, (time.time() if until is None else until) - at)
        self._ledger.write({"what": what, "at": at, "took": round(took, 4), "status": status, "job": job})


def _hook(mark_arrived: Any) -> type[BaseHTTPRequestHandler]:
    class Hook(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(204)
            self.end_headers()
            mark_arrived(json.loads(body).get("job_id", ""))

        def log_message(self, *_: object) -> None:
            pass

    return Hook


if __name__ == "__main__":
    plan = Path(sys.argv[1])
    neighbour = Neighbour(json.loads(plan.read_text()))
    plan.unlink()  # the file contains a key
    neighbour.run()
