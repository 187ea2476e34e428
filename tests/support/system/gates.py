"""A GPU model whose runs end at a signal of the test, which can so hold a job in the middle."""

from __future__ import annotations

from typing import Any

from gpu_host.node.handlers import RunContext

_LOOK_SECONDS = 0.02
_opened: set[str] = set()


def open_gate(*gates: str) -> None:
    _opened.update(gates)


def run(payload: Any, ctx: RunContext) -> dict[str, Any]:
    """payload: ``{"gate": name}`` waits for it; ``{"seconds": s}`` takes so long; the result echoes it."""
    ctx.wait(payload.get("seconds", 0.0))
    while "gate" in payload and payload["gate"] not in _opened:
        ctx.wait(_LOOK_SECONDS)
    return {"echo": payload}
