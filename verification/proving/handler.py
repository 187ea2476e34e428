"""What the trial's GPU servers run: nothing, for as long as they are told; the result names its attempt."""

from __future__ import annotations

from typing import Any

from gpu_host.node.handlers import RunContext
from gpu_host.node.simulator import takes_faults


@takes_faults
def run(payload: Any, ctx: RunContext) -> dict[str, Any]:
    ctx.wait(float(payload["seconds"]))
    return {"number": payload["number"], "attempt": ctx.attempt_id}
