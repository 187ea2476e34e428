"""GPU servers of a big fleet under virtual time: a run is a pause, a health check an answer at once."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

from benchmarks.big_fleet_meters import Ledger
from foundation.long_texts import LongTexts
from gpus.errors import Interrupted
from gpus.runners.base import Abort, Response
from verification.simulation.scheduler import Event, Scheduler


class SimulatedGpus:
    """`gpus.runners.base.Transport`. began: number of runs so far."""

    def __init__(self, scheduler: Scheduler, ledger: Ledger, swap_seconds: float) -> None:
        self._scheduler, self._ledger, self._swap_seconds = scheduler, ledger, swap_seconds
        self._running: dict[str, dict[str, tuple[str, float]]] = {}
        """By server, by attempt: its job, and when it began."""
        self.began = 0

    def request(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str],
        body: bytes | None,
        connect_timeout_seconds: float,
        deadline_seconds: float,
        max_bytes: int,
        ca_pem: str | None = None,
        abort: Abort | None = None,
        on_sent: Callable[[], None] | None = None,
        long_texts: LongTexts | None = None,
    ) -> Response:
        server, model = urlsplit(url).netloc, urlsplit(url).path.strip("/")
        if method == "GET":
            return self._health(server)
        now = self._scheduler.now
        self.began += 1
        asked = json.loads(body or b"{}")
        slot, attempt = headers["X-Slot"], headers["X-Attempt"]
        self._ledger.waited(now - asked["came"], now, asked["band"], asked["kind"])
        swap = self._ledger.start(slot, model, now, self._swap_seconds)
        runs = self._running.setdefault(server, {})
        runs[attempt] = headers["X-Job-Id"], now
        ended = Event(self._scheduler)
        if abort is not None:
            abort.set_reader(ended.set)
        try:
            if on_sent is not None:
                on_sent()
            if ended.wait(swap + asked["seconds"]):
                raise Interrupted("Stopped without a cancel.")
        finally:
            runs.pop(attempt, None)
            if abort is not None:
                abort.set_reader(None)
            self._ledger.end(slot, now, self._scheduler.now)
        return _json({"status": "success", "result": {"url": f"s3://results/{attempt}", "seed": 7}})

    def close(self) -> None:
        """Count active runs up to now."""
        for runs in self._running.values():
            for _, began in runs.values():
                self._ledger.still_running(began, self._scheduler.now)

    def _health(self, server: str) -> Response:
        runs = self._running.get(server, {})
        return _json(
            {
                "status": "ok",
                "active_jobs": len(runs),
                "max_concurrent": 1024,
                "boot_id": "the-only-one",
                "jobs": [{"job_id": job, "attempt": attempt} for attempt, (job, _) in runs.items()],
            }
        )


def _json(body: Mapping[str, Any]) -> Response:
    return Response(200, {"content-type": "application/json"}, json.dumps(body).encode())
