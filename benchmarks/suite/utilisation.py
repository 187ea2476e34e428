"""Utilisation of eight slots, idle time of a slot between two jobs, and cost of a job.

Every contender is restarted in each round and works on jobs of each length: its queue is filled while the GPU
server's gate is shut, so that submitting costs no contender anything while the clock runs. The first jobs end
one after the other, not all at once. Every contender is warmed up first. CPU: of all the contender's
processes, its broker among them, from the gate's opening to the last job's end; that of PostgreSQL
separately.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from verification.proving.children import NoReply
from verification.proving.terminal import say

from .contenders import DISPATCHER, Contender, Job
from .cpu import cpu_seconds
from .environment import CannotMeasure
from .figures import medians
from .gpu import Gpu, NotDone
from .slot_log import evaluate
from .suite import Suite

SLOTS = 8
LENGTHS = (0.02, 0.1, 0.5)
SECONDS = 8.0
_FEWEST_JOBS = SLOTS * 5
_WAIT_SECONDS = 60.0


def measure(suite: Suite) -> dict[str, Any]:
    """``{"contenders": {name: {length: {"rounds": […], "median": {…}}}}, "slots"}``; lengths as ``20 ms``."""
    found: dict[str, dict[str, dict[str, Any]]] = {}
    contenders = suite.contenders()
    for number in range(suite.options.rounds):
        turn = number % len(contenders)
        for contender in [*contenders[turn:], *contenders[:turn]]:
            _round(suite, contender, number, found)
    for lengths in found.values():
        for one in lengths.values():
            one["median"] = medians(one["rounds"])
            one["wrong"] = sorted({text for this in one["rounds"] for text in this["wrong"]})
    return {"slots": SLOTS, "contenders": found}


def length_name(seconds: float) -> str:
    return f"{seconds * 1000:g} ms"


def job_count(suite: Suite, seconds: float, default: float = SECONDS) -> int:
    """Return the number of jobs of that length for the requested time. default: seconds if none was
    requested."""
    wanted = suite.options.jobs or int((suite.options.seconds or default) * SLOTS / seconds)
    return max(_FEWEST_JOBS, wanted)


def spread_out(first: int, count: int, seconds: float, slots: int) -> list[Job]:
    """Return jobs; the first ones end one after the other."""
    return [
        (first + place, seconds * (place + 1) / slots if place < slots else seconds) for place in range(count)
    ]


def _round(suite: Suite, contender: Contender, number: int, found: dict[str, dict[str, Any]]) -> None:
    try:
        contender.start(SLOTS)
        contender.warm_up()
        for place, seconds in enumerate(LENGTHS):
            count = job_count(suite, seconds)
            jobs = spread_out((place + 1) * 10_000_000, count, seconds, SLOTS)
            one = run_jobs(suite.env.gpu, contender, jobs, SLOTS)
            lengths = found.setdefault(contender.name, {})
            lengths.setdefault(length_name(seconds), {"rounds": []})["rounds"].append(one)
            say(
                f"round {number + 1}  {contender.name:<14} {length_name(seconds):>6}  utilisation "
                f"{one['utilisation']:.4f}  gap {one['gap_p50_ms']:.2f} / {one['gap_p99_ms']:.2f} ms  "
                f"CPU {one['cpu_ms_per_job']:.2f} ms" + "".join(f"  WRONG: {text}" for text in one["wrong"])
            )
    except (CannotMeasure, NotDone, NoReply, ValueError) as error:
        if contender.name == DISPATCHER:
            raise
        suite.skip(contender.name, str(error))
    finally:
        contender.stop()


def run_jobs(
    gpu: Gpu, contender: Contender, jobs: Sequence[Job], slots: int, *, also: Sequence[int] = ()
) -> dict[str, Any]:
    """Run jobs; return the log's verdict and the cost. also: further processes of the contender. Raises
    NotDone without progress."""
    gpu.begin(slots)
    contender.fill(jobs)
    gpu.wait_for("held", min(slots, len(jobs)), _WAIT_SECONDS, contender.check)
    roots, database = [*contender.own_pids(), *also], contender.database_pids()
    own, stored, judge = cpu_seconds(roots), cpu_seconds(database), cpu_seconds([gpu.pid])
    began = time.monotonic()
    gpu.open_gate()
    gpu.wait_for("ended", len(jobs), _WAIT_SECONDS, contender.check)
    took = time.monotonic() - began
    own, stored = cpu_seconds(roots) - own, cpu_seconds(database) - stored
    judge = cpu_seconds([gpu.pid]) - judge
    runs, refused, _ = gpu.log()
    verdict = evaluate(runs, slots=slots, expected=[job for job, _ in jobs], refused=refused)
    return {
        **verdict.as_json(),
        "cpu_ms_per_job": round(own * 1000 / len(jobs), 3),
        "database_cpu_ms_per_job": round(stored * 1000 / len(jobs), 3),
        "judge_cpu_ms_per_job": round(judge * 1000 / len(jobs), 3),
        "cores": round((own + stored) / took, 3),
        "seconds": round(took, 2),
    }
