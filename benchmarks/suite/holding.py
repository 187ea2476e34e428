"""The model of the pinned workers in `pinned`."""

from __future__ import annotations

from typing import Any

from gpu_host.handlers import RunContext


class Waits:
    """Waits ``{"seconds": …}``, or until it is cancelled."""

    vram_mb = 1
    max_run_seconds = 600

    def run(self, payload: Any, ctx: RunContext) -> Any:
        ctx.wait(float(payload["seconds"]))
        ctx.check()
        return {}


MODELS = {"waits": Waits}
