"""`manage.py` with a stand-in for the GPU worker: `work` does what the next order in Redis says.

Orders are JSON in the list ``orders``: {"reports": [...], "seconds": n, "until": key, "deaf": true,
"shows": job id}; `until` runs until that key is there. What the worker was asked goes to the list ``calls``.
For tests of what surrounds it: queues, events, the ordered stop. Its heart beats twice a second, so that
a test does not wait long for a beat; STAND_IN_LAST_SECONDS shortens what interrupted runs get.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
import types
from dataclasses import dataclass
from typing import Any

import redis
from redis.backoff import ConstantBackoff
from redis.retry import Retry


@dataclass
class Report:
    """The fields of `jobs.execution.slot_loop.WorkReport`."""

    job_id: str
    model: str = "zimg"
    server: str = "zimg-1"
    slot: int = 0
    attempt: str = "a1"
    outcome: str = "completed"
    seconds: float = 1.5
    error_code: str = ""


def _lease(job_id: str) -> Any:
    return types.SimpleNamespace(job_id=job_id, model="zimg", slot="zimg-1/0")


class StandInWorker:
    show_run: Any

    def __init__(self) -> None:
        patient = Retry(ConstantBackoff(0.1), 600)  # it may be the broker that a test takes away
        url = os.environ["STAND_IN_REDIS"]
        self._redis = redis.Redis.from_url(url, decode_responses=True, retry=patient)
        self._interrupted = threading.Event()
        self._busy = 0

    def connected(self, *, show_run: Any, **options: Any) -> StandInWorker:
        """In place of `make_gpu_worker`."""
        self.show_run = show_run
        return self

    def _called(self, *call: Any) -> None:
        self._redis.rpush("calls", json.dumps(call))

    def start(self) -> None:
        self._called("start")

    def work(self, pool: str, host: str | None = None) -> list[Any]:
        order = json.loads(str(self._redis.lpop("orders") or "{}"))
        self._called("work", pool, host)
        self._busy += 1
        if "shows" in order:
            self.show_run(_lease(order["shows"]))
        until = time.monotonic() + order.get("seconds", 0)
        while (time.monotonic() < until or self._waits(order)) and not self._interrupted.wait(0.02):
            pass
        if order.get("deaf"):
            threading.Event().wait()
        self._busy -= 1
        self._called("worked", pool)
        return [Report(**report) for report in order.get("reports", [])]

    def _waits(self, order: dict[str, Any]) -> bool:
        return "until" in order and not self._redis.exists(order["until"])

    def drain(self) -> None:
        self._called("drain")

    def interrupt(self) -> None:
        self._called("interrupt")
        self._interrupted.set()

    def busy(self) -> int:
        return self._busy

    def takes_wakes(self) -> bool:
        return True

    def stop(self) -> None:
        self._called("stop")


def main() -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "dispatcher_project.settings.test")
    worker = StandInWorker()

    import django
    from django.core.management import execute_from_command_line

    django.setup()
    from dispatcher_project import wiring
    from dispatcher_project.celery_transport import ordered_stop, run
    from gpus.leasing.clock import AgreedClocks
    from gpus.protocol import SystemClock
    from gpus.registry.queries import RegistryCache
    from jobs import ports

    run.HEARTBEAT_SECONDS = 0.5
    if last := os.environ.get("STAND_IN_LAST_SECONDS"):
        ordered_stop.LAST_SECONDS = float(last)
    nothing: Any = types.SimpleNamespace(
        clock=SystemClock(), clock_watch=AgreedClocks(), registry=RegistryCache()
    )
    ports.production_ports = lambda: nothing  # type: ignore[assignment,return-value]
    idle: Any = types.SimpleNamespace(start=lambda: None, stop=lambda: None, run_named=lambda name: None)
    parts: Any = wiring
    parts.make_gpu_worker = worker.connected
    parts.make_sweep_runner = lambda: idle
    parts.make_presence = lambda queues, sweeps: idle

    signal.signal(signal.SIGUSR2, lambda *_: threading.Event().wait())  # the main thread hangs
    execute_from_command_line(sys.argv)


if __name__ == "__main__":
    main()
