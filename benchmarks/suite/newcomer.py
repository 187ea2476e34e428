"""What a newcomer meets first: jobs right after `up` is ready, and a GPU server as Python's `http.server` is.

Each row is measured like `utilisation`, on eight slots. Right after `up`: the first jobs of a new system,
beside the same jobs once a lease time has passed. Apart: a server that writes an answer's head and its body
in two pieces with Nagle's algorithm on, beside one that writes them together; jobs of 100 ms.
"""

from __future__ import annotations

from typing import Any

from verification.proving.terminal import say

from .contenders import Dispatcher
from .figures import medians
from .suite import Suite
from .utilisation import SLOTS, how_many, run_jobs, spread_out

SECONDS = 5.0
"""So that the first jobs end within the first lease time."""
FIRST, LATER, TOGETHER, APART = "right after `up`", "later", "head and body together", "head and body apart"
_LENGTHS = {FIRST: 0.02, LATER: 0.02, TOGETHER: 0.1, APART: 0.1}


def measure(suite: Suite) -> dict[str, Any]:
    """``{"rows": {name: {"rounds": […], "median": {…}}}, "wrong": […]}``."""
    rows: dict[str, dict[str, Any]] = {name: {"rounds": []} for name in _LENGTHS}
    for number in range(suite.options.rounds):
        with suite.dispatcher(SLOTS) as ours:
            for place, name in enumerate(_LENGTHS):
                if name == LATER:
                    ours.warm_up()
                if name == APART:
                    ours.register("apart", SLOTS, path="/apart")
                    ours.model = "apart"
                one = _row(suite, ours, name, place)
                rows[name]["rounds"].append(one)
                say(f"round {number + 1}  {name:<24} utilisation {one['utilisation']:.4f}")
    for row in rows.values():
        row["median"] = medians(row["rounds"])
    wrong = sorted({text for row in rows.values() for one in row["rounds"] for text in one["wrong"]})
    return {"rows": rows, "slots": SLOTS, "wrong": wrong}


def _row(suite: Suite, ours: Dispatcher, name: str, place: int) -> dict[str, Any]:
    seconds = _LENGTHS[name]
    jobs = spread_out((place + 1) * 10_000_000, how_many(suite, seconds, SECONDS), seconds, SLOTS)
    return run_jobs(suite.ground.gpu, ours, jobs, SLOTS)
