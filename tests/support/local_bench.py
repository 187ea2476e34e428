"""A GPU whose models run in processes of this machine."""

from __future__ import annotations

import threading
import uuid
from pathlib import Path
from typing import Any

from gpu_host.local.device import RamGauge
from gpu_host.local.gpu import LocalGpu
from gpu_host.local.loaded_models import LocalGpuOptions
from gpu_host.local.orders import Order
from gpus.runners.base import Abort

MODELS = "tests.gpu_host.local.models"


class Bench:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.heard: list[tuple[str, str, Any]] = []
        self.lines: list[str] = []
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.gpu = LocalGpu(
            [MODELS],
            gauge=RamGauge(),
            environment={"CUDA_VISIBLE_DEVICES": "", "TEST_FOLDER": str(folder)},
            output_root=folder / "output",
            options=LocalGpuOptions(
                sample_seconds=0.0,
                budget_mb=600,
                free_seconds=1.0,
                free_tolerance_mb=50,
                cancel_seconds=0.3,
                min_leak_mb=60,
            ),
            on_event=lambda order, kind, value: self.heard.append((order.attempt, kind, value)),
            output=self.lines.append,
            log_event=lambda event, **fields: self.events.append((event, fields)),
        )

    def order(self, model: str, payload: Any = None, *, limit_seconds: float = 30.0) -> Order:
        attempt = uuid.uuid4().hex
        return Order(attempt, f"job-{attempt[:6]}", model, payload, limit_seconds)

    def run(self, model: str, payload: Any = None, **values: Any) -> Any:
        return self.gpu.run(self.order(model, payload, **values), Abort())

    def wild(self, do: str, **payload: Any) -> Any:
        return self.run("wild", {"do": do, **payload})

    def log_of(self, order: Order) -> list[tuple[str, str]]:
        """The stream and text of each log line of a run."""
        parts = [value for attempt, kind, value in self.heard if (attempt, kind) == (order.attempt, "log")]
        return [(line.stream, line.text) for part in parts for line in part.lines]

    def begin(self, order: Order) -> Going:
        return Going(self.gpu, order)

    def path(self) -> Path:
        return self.folder / uuid.uuid4().hex


class Going:
    """A run in a thread of its own."""

    def __init__(self, gpu: LocalGpu, order: Order) -> None:
        self.order, self.abort = order, Abort()
        self.result: Any = None
        self.error: Exception | None = None
        self._thread = threading.Thread(target=self._go, args=(gpu,), daemon=True)
        self._thread.start()

    def _go(self, gpu: LocalGpu) -> None:
        try:
            self.result = gpu.run(self.order, self.abort)
        except Exception as error:
            self.error = error

    def end(self) -> Any:
        self._thread.join(30)
        assert not self._thread.is_alive(), "the run does not end"
        if self.error is not None:
            raise self.error
        return self.result
