"""Models as an author writes them."""

from __future__ import annotations

from typing import Any

from gpu_host.handlers import RunContext

vram_mb = 100
at_once = 2
name = "module-model"
loads = 0


def load() -> str:
    global loads
    loads += 1
    return f"handle {loads}"


def run(payload: Any, ctx: RunContext) -> Any:
    return [payload, ctx.model]


class Plain:
    """Without load: its object is the handle."""

    def run(self, payload: Any, ctx: RunContext) -> Any:
        return ctx.model is self


def only_payload(payload: Any) -> Any:
    return payload
