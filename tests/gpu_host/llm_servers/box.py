"""A worker's GPU with an LLM server on it, for the tests of this folder."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from gpu_host.llm_servers.declared import FILE_VARIABLE, MODULE
from gpu_host.local.device import Gauge, RamGauge
from gpu_host.local.gpu import LocalGpu
from gpu_host.local.loaded_models import LocalGpuOptions
from gpu_host.local.orders import Order
from gpus.runners.base import Abort
from tests.support.ports import free_port

CHAT = {"messages": [{"role": "user", "content": "Tell me"}], "stream": True}


class Box:
    """A worker's GPU (600 MB of RAM) with one LLM server of 150 MB and the models of
    `tests.gpu_host.local`."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.log = folder, folder / "server.log"
        self.log.touch()
        self.reports: list[tuple[str, Any]] = []
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.gpu: LocalGpu | None = None

    def command(self, port: int, mib: int, *does: str) -> list[str]:
        words = (sys.executable, "-m", "tests.gpu_host.llm_servers.fake_llm", port, mib, self.log, *does)
        return [str(word) for word in words]

    def open(
        self, *does: str, command: str | None = None, gauge: Gauge | None = None, **more: Any
    ) -> LocalGpu:
        """command: another one; empty: none."""
        port = free_port()
        words = self.command(port, 150, *does)
        fields = {
            "protocol": "openai",
            "url": f"http://127.0.0.1:{port}/v1",
            "vram_mb": 200,
            "slots": 2,
            "start_seconds": 60,
            "command": words if command is None else [command],
            **more,
        }
        if command == "":
            del fields["command"]
        lines = [f"{name} = {_toml(value)}" for name, value in fields.items()]
        file = self.folder / "llms.toml"
        file.write_text("\n".join(["[llama]", *lines, ""]))
        self.gpu = LocalGpu(
            ["tests.gpu_host.local.models", MODULE],
            gauge=gauge or RamGauge(),
            environment={FILE_VARIABLE: str(file), "TEST_FOLDER": str(self.folder)},
            output_root=self.folder / "output",
            options=LocalGpuOptions(
                budget_mb=600, free_seconds=5.0, free_tolerance_mb=50, cancel_seconds=30.0, sample_seconds=0.0
            ),
            on_event=lambda order, kind, value: self.reports.append((kind, value)),
            log_event=lambda event, **fields: self.events.append((event, fields)),
        )
        self.gpu.start()
        return self.gpu

    def run(self, model: str, payload: Any = None, abort: Abort | None = None) -> Any:
        assert self.gpu is not None
        attempt = os.urandom(8).hex()
        return self.gpu.run(Order(attempt, f"job-{attempt}", model, payload, 60.0), abort or Abort())

    def notes(self, word: str) -> list[str]:
        return [line for line in self.log.read_text().splitlines() if line.startswith(word)]

    @property
    def pid(self) -> int:
        return int(self.notes("up")[-1].split()[1])

    @property
    def text(self) -> str:
        return "".join(value for kind, value in self.reports if kind == "partial")


def _toml(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else repr(value)
