"""The handler of the trial's GPU servers: it sleeps; the result names its attempt."""

from __future__ import annotations

from typing import Any

from gpu_host.node.handlers import RunContext
from gpu_host.node.simulator import takes_faults


@takes_faults
def run(payload: Any, ctx: RunContext) -> dict[str, Any]:
    """Sleep for the payload's seconds; return the attempt's id."""
    ctx.wait(float(payload["seconds"]))
    return {"number": payload["number"], "attempt": ctx.attempt_id}
