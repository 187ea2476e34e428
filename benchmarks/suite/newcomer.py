"""First impressions: jobs right after `up` is ready, and a GPU server written with Python's `http.server`.

Each row is measured like `utilisation`, on eight slots. Right after `up`: the first jobs of a new system,
compared with the same jobs after a lease time. Apart: a server that writes an answer's head and its body in
two pieces with Nagle's algorithm on, compared with one that writes them together; jobs of 100 ms.
"""

from __future__ import annotations

from typing import Any

from verification.proving.terminal import say

from .contenders import Dispatcher
from .figures import medians
from .suite import Suite
from .utilisation import SLOTS, job_count, run_jobs, spread_out

SECONDS = 5.0
"""Short enough for the first jobs to end within the first lease time."""
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
    jobs = spread_out((place + 1) * 10_000_000, job_count(suite, seconds, SECONDS), seconds, SLOTS)
    return run_jobs(suite.env.gpu, ours, jobs, SLOTS)
