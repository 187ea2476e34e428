"""The cost of `up` at rest, as users start it: with its demo fleet (benchmarks/idle.py)."""

from __future__ import annotations

import time
from dataclasses import astuple
from typing import Any

from benchmarks.idle import ALL, SECONDS, measure_processes
from verification.proving.terminal import say

from .suite import Suite

_SETTLE_SECONDS = 30.0


def measure(suite: Suite) -> dict[str, Any]:
    with suite.dispatcher(demo=True) as ours:
        time.sleep(_SETTLE_SECONDS)
        found = measure_processes(ours.system.pids(), suite.options.seconds or SECONDS)
    whole = found[ALL]
    say(f"`up` at rest: {whole.pss_mb:.0f} MB, {whole.core_share:.1%} of a core")
    rows = {name: [round(value, 4) for value in astuple(cost)] for name, cost in found.items()}
    return {"mb": round(whole.pss_mb, 1), "core_percent": round(whole.core_share * 100, 2), "processes": rows}
